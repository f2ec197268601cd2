# Targets for setting up, building, training and testing. `make` without a target lists them.

SEED = 1
CONFIG = configs/chain.toml
# Further settings of the training run, such as ARGS="trainer.total_training_steps=10".
ARGS =

# Seeds other than 1 use their own folders, so that runs can be compared.
suffix := $(if $(filter-out 1,$(SEED)),-seed$(SEED))
DATA = data/chain
WARM_START = runs/chain-warm-start$(suffix)
RUN = runs/$(basename $(notdir $(CONFIG)))$(suffix)

rollpacker := target/release/rollpacker
# The path of the binary follows CARGO_TARGET_DIR, as cargo does.
ifdef CARGO_TARGET_DIR
rollpacker := $(CARGO_TARGET_DIR)/release/rollpacker
endif

dist := $(dir $(rollpacker))../dist/rollpacker-$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)-x86_64-linux

wheels := $(dir $(rollpacker))../wheels

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help prerequisites libtorch release data warm-start train test bench vllm doc book lint dist wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

prerequisites: ## report missing prerequisites of this machine
	@sh .cargo/prerequisites.sh

libtorch: prerequisites ## install libtorch in .libtorch/, unless LIBTORCH or LIBTORCH_USE_PYTORCH is set
	@python3 .cargo/libtorch.py

release: libtorch ## build target/release/rollpacker
	cargo build --release

train: warm-start ## train on the built-in task; SEED, CONFIG, RUN and ARGS may be set
	$(rollpacker) train --config $(CONFIG) --out $(RUN) model.path=$(WARM_START) trainer.seed=$(SEED) $(ARGS)

data: $(DATA)/train.parquet ## generate the prompts of the built-in task

warm-start: $(WARM_START)/tokenizer_config.json ## fine-tune the initial model of training

# Generated once, even if the code changes later: remove the folder to generate it again. Each command writes the file named here last,
# so the file exists only if the output is complete.
$(DATA)/train.parquet: | release
	$(rollpacker) data generate -o $(DATA)

$(WARM_START)/tokenizer_config.json: | release $(DATA)/train.parquet
	$(rollpacker) sft --config configs/chain.toml --out $(WARM_START) trainer.seed=$(SEED)

test: libtorch ## run every test
	cargo test --workspace

bench: libtorch ## run every benchmark
	cargo bench --workspace

# The archive runs on machines without Rust, Python and libtorch.
dist: release ## pack target/release/rollpacker and libtorch into a relocatable archive in target/dist/
	rm -rf $(dist)
	@mkdir -p $(dir $(dist))
	@python3 .cargo/dist.py $(rollpacker) $(dist)
	tar -C $(dir $(dist)) -czf $(dist).tar.gz $(notdir $(dist))
	@ls -lh $(dist).tar.gz

wheel: libtorch ## build the Python wheel in target/wheels/; needs maturin
	maturin build --release --locked --manifest-path python/wheel/Cargo.toml --out $(wheels)

vllm: ## install vLLM for the CPU in .vllm/, to try it as the rollout engine
	@python3 .cargo/vllm.py

doc: libtorch ## build the documentation in target/doc
	cargo doc --workspace --no-deps

# mdBook is compiled if it is not installed, without optimization: that takes about a minute and a half of two cores, with it three times as
# long, and the book is built in a second either way.
book: ## build the book in target/book, from docs/
	@PATH="$$PATH:$(CURDIR)/target/tools/bin"; \
	command -v mdbook >/dev/null || cargo install mdbook --version 0.5.4 --locked --debug --no-default-features --features search \
	    --root target/tools && mdbook build

lint: libtorch ## check formatting and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean: ## remove build outputs, but not downloads, generated data or models
	cargo clean
