# Everything that set-up needs. `make` alone prints what there is.

SEED = 1
CONFIG = configs/chain.toml
# Further settings for the training run, such as ARGS="trainer.total_training_steps=10".
ARGS =

# A seed other than 1 has folders of its own, so that runs can be compared.
suffix := $(if $(filter-out 1,$(SEED)),-seed$(SEED))
DATA = data/chain
WARM_START = runs/chain-warm-start$(suffix)
RUN = runs/$(basename $(notdir $(CONFIG)))$(suffix)

rollpacker := target/release/rollpacker
# Cargo follows CARGO_TARGET_DIR; the recipes below name the binary by where it then is.
ifdef CARGO_TARGET_DIR
rollpacker := $(CARGO_TARGET_DIR)/release/rollpacker
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help prerequisites libtorch release data warm-start train test bench doc lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

prerequisites: ## name what is missing on this machine
	@sh .cargo/prerequisites.sh

libtorch: prerequisites ## lay out libtorch in .libtorch/, unless LIBTORCH or LIBTORCH_USE_PYTORCH is set
	@python3 .cargo/libtorch.py

release: libtorch ## build target/release/rollpacker
	cargo build --release

train: warm-start ## train on the built-in task; SEED, CONFIG, RUN and ARGS may be set
	$(rollpacker) train --config $(CONFIG) --out $(RUN) model.path=$(WARM_START) trainer.seed=$(SEED) $(ARGS)

data: $(DATA)/train.parquet ## generate the prompts of the built-in task

warm-start: $(WARM_START)/tokenizer_config.json ## fine-tune the model that training starts from

# Made once, whatever becomes of the code: remove the folder to have it made again. Each command writes the file that is named here
# last, so that it is there only if the rest is.
$(DATA)/train.parquet: | release
	$(rollpacker) data generate -o $(DATA)

$(WARM_START)/tokenizer_config.json: | release $(DATA)/train.parquet
	$(rollpacker) sft --config configs/chain.toml --out $(WARM_START) trainer.seed=$(SEED)

test: libtorch ## run every test
	cargo test --workspace

bench: libtorch ## run every benchmark
	cargo bench --workspace

doc: libtorch ## build the documentation in target/doc
	cargo doc --workspace --no-deps

lint: libtorch ## check formatting and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean: ## remove what was built, not what was fetched, generated or trained
	cargo clean
