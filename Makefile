# Every target sets up what it needs, on a machine with nothing but make: a virtual environment in
# .venv, and Java where Spark or ZooKeeper run. Logic: scripts/setup.sh.
#
#   make demo [KEEP=1]      real data through the whole platform; KEEP=1 leaves it running
#   make test [TESTS=path]  every test but those that need parts from elsewhere, and the long ones
#   make fuzz [CHUNKS=n] [FIRST=n] [SANITIZE=1]   what is in C against its twins in Python, on the same
#                           bytes; SANITIZE: built with address and undefined-behaviour sanitizers
#   make pythons [PYTHONS="3.12 3.13 3.14"]   the unit tests with other Pythons, those of them that are
#                           installed, each in an environment of its own (.venv-3.13), with and without the part in C
#   make check              format, lint, types, house rules
#   make sim [RING=2] [KIND=k] [SEEDS=n] [FIRST=n] [SEED=n] [KEEP_GOING=1]   the simulator: 1 machines, 2 whole roles;
#                           seeds of today without FIRST (printed), SEED repeats one run
#   make sim-mutants [MUTANT="name" [RING=2] [SEED=n]]   plants known bugs one by one, each must
#                           be found; writes the table
#   make scenarios [STALL_S=n]   the loss scenarios, long versions too (docs/guarantees.md)
#   make prove [SCENARIO=name] [SEED=n]   the same faults on both engines, counted, with a page for who
#                           decides between them, in out/prove (docs/prove.md); some minutes.
#                           PEERS=1: on clusters of Kafka's and Pulsar's own, too, which Maven
#                           fetches, into out/peers or KEPT=dir
#   make interop            Pulsar's own Java clients (of messages, of REST) and pulsar-perf,
#                           BookKeeper's Java client and shell, Kafka's tools and broker on our
#                           partitions' files; needs Maven and a Java compiler,
#                           which it does not install, and fetches the clients; KEPT=dir keeps what
#                           it fetched. With Go, Pulsar's Go clients too. KILLS=n: so many times
#                           kill -9 of brokers under the Java client, and not 5
#   make chaos [MINUTES=n] [SEED=n]   a whole cluster while everything that can break does: killed,
#                           paused, cut off, full disks; 3 minutes; then judge (docs/guarantees.md);
#                           KEPT=dir as for interop: Java's client too
#   make upgrade FROM=commit [BACK=1] [SEED=n]   the servers of such a cluster go from that commit of
#                           this repository to this one, one after the other, or back, under clients of
#                           Pulsar and Kafka; then judge (docs/operating.md); 4 minutes
#   make moves [ROUNDS=n] [KILLED=1]   the brokers of such a cluster are ended in order (or killed),
#                           one after the other, 10 rounds, under clients of Pulsar and Kafka; then
#                           judge; 5 minutes
#   make jobs               the jobs on Spark with real servers, long ones too (docs/jobs.md)
#   make failovers          50 topics, 30 times kill -9 of a broker; then count, and for how long
#   make replacements [KILLS=n] [SEED=n]   20 times kill -9 of the read-only broker that serves a
#                           subscription; then count what came, came again, and was trimmed
#   make churn [CYCLES=n]   clients make, use and delete all there is, in cycles; nothing may stay of it
#   make damage [CASES=n] [SEED=n] [BOOKIES=3] [ONLY=kind]   one file of a server's directory is damaged,
#                           20 times, each in another way; what is lost must be told (5 minutes)
#   make damage-copies [OF=broker] [CASES=n] [SEED=n] [ONLY=kind]   the same of one server of a
#                           cluster, where others have copies: nothing is lost, and all is mended
#                           (needs Java; 10 minutes)
#   make crashes            kill -9 at random while clients and Spark use one server, then count
#   make power-cuts [CUTS=n] [SEED=n]   the power goes under a real bookie, 100 times, at any moment;
#                           what it acknowledged must be there (docs/adr/0103-power-cuts-under-a-shim.md);
#                           needs a C compiler
#   make fire [ROWS=n] [KILLS=n] [SEED=n]   30 times kill -9, at every part, under a query on a Spark
#                           cluster that writes exactly once; then count (docs/spark.md)
#   make tables [MESSAGES=n] [KILLS=n] [SEED=n]   topics as tables: on an S3 server, which it installs;
#                           30 times kill -9 and refused storage under the job; 20 M messages to a
#                           table and back, compared; how far it is behind at 20 000 a second
#                           (docs/tables.md)
#   make bench              the measurements, into bench/
#   make bench-peers KEPT=dir [PARTS="pulsar topics kafka bookies spark"] [ROUNDS=n] [QUICK=1]   beside Pulsar,
#                           Kafka, BookKeeper, and Spark's own source and sink for Kafka, in turns, and
#                           one table of ratios; hours. Needs Maven and a Java compiler, and fetches
#                           the peers into dir, which stays
#   make pages              ARCHITECTURE.md's tables, docs/layers.md, docs/machines.md and the index
#                           of decisions again, after the code has changed
#   make proto              protobuf modules again, after a .proto has changed
#   make clean              away with everything that make has made

VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 200
RING ?= 1
TESTS ?= tests
PYTHONS ?= 3.12 3.13 3.14
CUTS ?= 100
PROVE = $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED))
FUZZ = $(if $(CHUNKS),--chunks $(CHUNKS)) $(if $(FIRST),--first $(FIRST))
TWINS_TESTS := $(addprefix tests/unit/, wire/bookie/test_v2.py wire/bookie/test_digest.py \
	wire/pulsar/test_plain_acks.py wire/pulsar/test_encoders.py wire/pulsar/test_golden.py \
	bookie/test_journal_format.py bookie/test_journal_scan.py bookie/test_storage_parts.py \
	protocols/pulsar/test_deliveries.py protocols/pulsar/test_golden_java.py)
PROTO_BIN := $(VENV)-proto/bin
S3_BIN := $(VENV)-s3/bin
WITH_S3 := MAGNETAR_S3_SERVER=$(abspath $(S3_BIN))/moto_server

# A test run starts hundreds of processes: none shall compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-pure pythons fuzz check sim sim-mutants scenarios prove interop chaos upgrade moves jobs tables failovers \
	replacements \
	churn damage damage-copies crashes power-cuts fire \
	bench bench-peers pages proto clean java

help:
	@sed -n 's/^#   //p' Makefile

# The stamps say which extra is installed, and from which pyproject.toml. What the package has in C
# is built by installing it.
BUILT_FROM := pyproject.toml setup.py scripts/setup.sh src/magnetar/_speedups.c

$(VENV)/.dev: $(BUILT_FROM)
	@scripts/setup.sh install $(VENV) dev
	@touch $@ $(VENV)/.demo

$(VENV)/.demo: $(BUILT_FROM)
	@scripts/setup.sh install $(VENV) demo
	@touch $@

java:
	@scripts/setup.sh java

demo: $(VENV)/.demo java
	@$(BIN)/python demo/run.py $(if $(KEEP),--keep)

# Three processes for two cores, each file of tests in one of them (tests/conftest.py): much of a
# test's time is waiting for servers. The longest come first, as they are named.
test: $(VENV)/.dev java
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not peer and not slow" $(TESTS)
	@test "$(TESTS)" != tests || $(MAKE) --no-print-directory test-pure
	@scripts/speedups.sh check $(BIN)/python

# The codecs over magnetar._speedups, with its twins in Python (tests/unit/speedups runs both).
test-pure: $(VENV)/.dev
	MAGNETAR_SPEEDUPS=0 $(BIN)/python -m pytest -n 3 --dist loadfile -m "not peer and not slow" \
		$(TWINS_TESTS)

pythons:
	@found=; for version in $(PYTHONS); do \
		python$$version -c "" 2> /dev/null || { echo "python$$version is not installed"; continue; }; \
		found=yes; venv=.venv-$$version; \
		PYTHON=python$$version scripts/setup.sh install $$venv dev && \
		$$venv/bin/python -m pytest -n 3 --dist loadfile -m "not peer and not slow" tests/unit && \
		MAGNETAR_SPEEDUPS=0 $$venv/bin/python -m pytest -n 3 --dist loadfile $(TWINS_TESTS) || exit 1; \
	done; test -n "$$found" || { echo "none of Python $(PYTHONS) is installed"; exit 1; }

# SANITIZE=1: a build with address and undefined-behaviour sanitizers, which end the run at a fault,
# and with checksums by table, as on machines without the instruction.
fuzz: $(VENV)/.dev
ifdef SANITIZE
	@scripts/speedups.sh build $(BIN)/python out/sanitized -O1 -g -fno-omit-frame-pointer \
		-fsanitize=address,undefined -fno-sanitize-recover=all -DTABLE_CRC
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc MAGNETAR_SPEEDUPS=0 \
		$(BIN)/python -m tests.unit.speedups.fuzz --module out/sanitized/_speedups.abi3.so $(FUZZ)
else
	$(BIN)/python -m tests.unit.speedups.fuzz $(FUZZ)
endif

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/tidy

sim: $(VENV)/.dev
	$(BIN)/python -m magnetar_sim --ring $(RING) $(if $(KIND),--kind $(KIND) )$(if $(SEED),--seed $(SEED),--seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))) \
		$(if $(KEEP_GOING),--keep-going)

sim-mutants: $(VENV)/.dev
	$(BIN)/python -m tests.sim.mutants $(if $(MUTANT),--only "$(MUTANT)" --ring $(RING)) \
		$(if $(SEED),--seed $(SEED))

scenarios: $(VENV)/.dev java
	$(if $(STALL_S),STALL_S=$(STALL_S) )$(BIN)/python -m pytest --durations=0 tests/scenarios
	$(BIN)/python -m pytest --durations=0 -m slow tests/integration/test_engines.py

prove: $(VENV)/.dev java
ifdef PEERS
	$(BIN)/python -m bench.peers.prove $(if $(KEPT),$(abspath $(KEPT)),out/peers) $(PROVE)
else
	$(BIN)/python -m magnetar prove $(PROVE)
endif

interop: $(VENV)/.dev java
	@for tool in mvn javac; do command -v $$tool > /dev/null || \
		{ echo "make interop needs $$tool: install Maven and a JDK (17 or later)"; exit 1; }; done
	$(if $(KEPT),MAGNETAR_PEER_DIR=$(abspath $(KEPT)) )$(if $(KILLS),MAGNETAR_KILLS=$(KILLS) \
		)$(BIN)/python -m pytest -m peer \
		tests/interop/bookkeeper tests/interop/java tests/interop/go tests/interop/kafka

chaos: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.whole $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(KEPT),--java $(abspath $(KEPT))/pulsar)

upgrade: $(VENV)/.dev java
	@test -n "$(FROM)" || { echo "make upgrade needs FROM: a commit of this repository"; exit 1; }
	$(BIN)/python -m tests.chaos.upgrade --from $(FROM) $(if $(BACK),--back) \
		$(if $(SEED),--seed $(SEED)) $(if $(KEPT),--java $(abspath $(KEPT))/pulsar)

moves: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.moves $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(KILLED),--killed) \
		$(if $(KEPT),--java $(abspath $(KEPT))/pulsar)

jobs: $(VENV)/.dev java
	$(BIN)/python -m pytest -m "not peer" tests/integration/spark/test_audit.py \
		tests/integration/spark/test_compacting_job.py \
		tests/integration/spark/test_copying_jobs.py tests/integration/spark/test_submitted.py

failovers: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.shared_topics --kinds killed $(if $(SEED),--seed $(SEED))

replacements: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.read_only_kills $(if $(KILLS),--kills $(KILLS)) \
		$(if $(SEED),--seed $(SEED))

power-cuts: $(VENV)/.dev
	$(BIN)/python -m tests.power_cuts --cuts $(CUTS) $(if $(SEED),--seed $(SEED))

churn: $(VENV)/.dev
	$(BIN)/python -m tests.chaos.churn $(if $(CYCLES),--cycles $(CYCLES))

damage: $(VENV)/.dev
	$(BIN)/python -m tests.chaos.damage $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(BOOKIES),--bookies $(BOOKIES)) $(if $(ONLY),--only "$(ONLY)")

damage-copies: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.damage.cluster $(if $(OF),--of $(OF)) $(if $(CASES),--cases $(CASES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)")

crashes: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.crash_publish
	$(BIN)/python -m tests.chaos.holes
	$(BIN)/python -m tests.chaos.holes --kill --batching
	$(BIN)/python -m tests.chaos.stream_restart
	$(BIN)/python -m pytest -m slow tests/integration/test_kafka_transactions.py

fire: $(VENV)/.dev java
	$(BIN)/python -m tests.chaos.spark_fire $(if $(ROWS),--rows $(ROWS)) $(if $(KILLS),--kills $(KILLS)) \
		$(if $(SEED),--seed $(SEED))

# The S3 server has an environment of its own: what it needs is not what the product runs with.
$(S3_BIN)/moto_server:
	@scripts/setup.sh venv $(VENV)-s3
	$(S3_BIN)/python -m pip install --quiet --disable-pip-version-check "moto[s3]>=5" flask flask-cors
	@touch $@

tables: $(VENV)/.dev $(S3_BIN)/moto_server java
	$(WITH_S3) $(BIN)/python -m pytest -m slow tests/integration/test_tables_s3.py
	$(WITH_S3) $(BIN)/python -m tests.chaos.table_fire $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m bench.tables --spark $(if $(MESSAGES),--messages $(MESSAGES))
	$(BIN)/python -m bench.table_lag

bench: $(VENV)/.dev java
	$(BIN)/python bench/run.py

bench-peers: $(VENV)/.dev java
	@test -n "$(KEPT)" || { echo "make bench-peers KEPT=dir: where peers are fetched to, and stay"; exit 1; }
	$(BIN)/python -m bench.peers --kept $(abspath $(KEPT)) $(if $(PARTS),--parts $(PARTS)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick)

pages: $(VENV)/.dev
	$(BIN)/python -m tests.tidy.pages

# grpcio-tools brings the compiler; it lives in an environment of its own because its protobuf is
# an older one. The results are committed.
$(PROTO_BIN)/mypy-protobuf: pyproject.toml
	@scripts/setup.sh venv $(VENV)-proto
	$(PROTO_BIN)/python -m pip install --quiet --disable-pip-version-check \
		"grpcio-tools>=1.75,<1.77" "mypy-protobuf>=3.6"
	@touch $@

proto: $(PROTO_BIN)/mypy-protobuf
	for file in $$(find src -name '*.proto'); do \
		$(PROTO_BIN)/python -m grpc_tools.protoc --plugin=$(PROTO_BIN)/protoc-gen-mypy \
			-Isrc --python_out=src --mypy_out=src $$file || exit 1; \
	done

clean:
	rm -rf $(VENV) $(VENV)-proto $(VENV)-s3 $(VENV)-3.* build dist out src/*.egg-info src/magnetar/_speedups*.so \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench demo examples -name __pycache__ -prune -exec rm -r {} +
