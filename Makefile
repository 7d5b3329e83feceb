STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT  := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
COMPOSE     := github.com/compose-spec/compose-go/v2/cmd@v2.16.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.7.0
FUZZTIME    ?= 30s
MODEL_SEQUENCES ?= 1000
SOAK        ?= 1h
PERIODIC_DAYS ?= 365
ROUNDS      ?= 5
LIMIT       ?= 10m
PEERS       ?= ^(redisdelay|redisstream|asynq|bullmq|nats)$$

.DEFAULT_GOAL := help
.PHONY: help test compile-tests slowest test-ci test-dashboard dashboard-large dashboard-pictures dashboard-assets test-brokers test-servers lint bench bench-cluster bench-cluster-smoke bench-smoke bench-otel bench-prometheus bench-peers bench-peers-smoke microbench microbench-smoke commands-smoke release release-check vuln pairs pairs-smoke model stress stress-smoke faults periodic soak fuzz cover lua test-alerts

help: ## show these lines
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST)

# RACE=1 has the race detector, which makes tests four times as slow. CI has it always.
# The detector does not watch the Lua of the embedded server, which runs in one goroutine at a time and is most of its work. (Not
# to watch the server itself brings false alarms: the detector then does not see what its locks order.) Nor
# does it watch internal/queue's own tests, which call scripts one after another: its code is watched in the tests of its callers.
# SLOWEST is how many of the slowest tests a run names at its end.
RACE    ?=
SLOWEST ?= 0
RACED   := -race -gcflags=github.com/yuin/gopher-lua/...=-race=false
# A raced program would end a second later, for goroutines that are left to watch. goleak sees that most
# packages leave none. A race during a test is reported as ever.
export GORACE ?= atexit_sleep_ms=0

# Two modules run at a time. The longest comes first.
MODULES := cmd/redisdelay tests/components prometheus otel examples/observed examples/delayed-redisstream examples/delayed-nats examples/delayed-kafka examples/retry-kafka

# The runner of tests is compiled first, with all of the standard library that it needs. It says every tenth package.
RUNNER := go build -v -o /dev/null ./scripts/runtests 2>&1 | awk 'NR % 10 == 1 { print "compiling: " $$0; fflush() }'

# Most tests wait more than they compute, so more of them run at once than there are CPUs. Those of ./tests wait most, and go first.
test: ## the tests of this module but tests/faults, on an embedded Redis and a real one; with RACE=1 under the race detector
	@echo 'make test: the tests of this module but tests/faults, on an embedded Redis and on a redis-server.'
	@echo 'It takes about $(if $(RACE),ten,six) minutes on two CPUs, and two more the first time, to compile. It prints a line for each package:'
	@$(RUNNER)
	@scripts/with-redis.sh sh -c 'go run ./scripts/runtests -lanes=2 -slowest=$(SLOWEST) \
		". $(if $(RACE),$(RACED)) -timeout=20m -parallel=4 ./tests $$(go list ./... | grep -v -e /tests/faults -e /tests$$$(if $(RACE), -e /internal/queue$$))" \
		$(if $(RACE),". -timeout=20m -parallel=4 ./internal/queue")'

compile-tests: ## compiles the tests of all modules with the race detector, and links and runs none
	@for module in . $(MODULES); do go -C $$module list $(RACED) -test -deps -export ./... >/dev/null || exit 1; done

slowest: SLOWEST := 20
slowest: test ## make test, and then the twenty slowest tests by name

# Watermill's own TestReconnect has a data race in it, so that one runs without the detector. The short form of
# tests/faults has to stay short. It computes more than it waits: with four at a time it takes longer than with three.
test-ci: ## what CI runs besides: tests/faults in its short form, the other modules, with the race detector
	@echo 'make test-ci: tests/faults in its short form, and the other modules, with the race detector.'
	@echo 'It takes about six minutes on two CPUs, and two more the first time, to compile. It prints a line for each package:'
	@$(RUNNER)
	@scripts/with-redis.sh go run ./scripts/runtests -lanes=2 -slowest=$(SLOWEST) \
		'. $(RACED) -timeout=20m -parallel=3 ./tests/faults' \
		'. -timeout=5m -run=TestUniversalReconnect ./tests' \
		$(foreach module,$(MODULES),'$(module) $(RACED) -timeout=20m -parallel=4 -skip=RabbitMQ ./...')

# tests/brokers without the race detector, because watermill-amqp has a data race where it reconnects.
test-brokers: ## streams, and the relay with brokers: Redis Streams, NATS JetStream, RabbitMQ, Kafka (kfake), PostgreSQL, gochannel; the tool with RabbitMQ; the outbox in PostgreSQL
	@scripts/with-postgres.sh scripts/with-rabbitmq.sh scripts/with-redis.sh sh -c '\
		go -C examples/outbox test -count=1 -timeout 5m ./... && \
		go -C tests/brokers test -count=1 -timeout 15m ./... && \
		go -C cmd/redisdelay test $(RACED) -count=1 -timeout 15m -run RabbitMQ ./...'

test-alerts: ## the rules of prometheus/alerts.yml and slo.yml, and the Prometheus of the compose file, with promtool of Debian
	@scripts/alerts.sh

# chromedp starts one Chromium for all tests. The tests with a race detector are those of the package itself, in make test.
test-dashboard: ## the web page in Chromium: the operator's situations, attacks, accessibility, 10,000 topics
	@scripts/with-chromium.sh scripts/with-redis.sh go -C tests/dashboard test -count=1 -timeout 10m ./...

dashboard-large: ## the web page with a million messages in a topic
	@DASHBOARD_LARGE=1 scripts/with-chromium.sh scripts/with-redis.sh go -C tests/dashboard test -count=1 -timeout 20m -v -run 'AMillion|TenThousand|Costs' ./...

dashboard-pictures: ## the pictures of docs/dashboard.md anew; takes three minutes
	@PICTURES=$(CURDIR)/docs/dashboard scripts/with-chromium.sh scripts/with-redis.sh go -C tests/dashboard test -count=1 -timeout 10m -run Pictures ./...

dashboard-assets: ## the web page's libraries of browsers anew, from their npm packages
	@scripts/dashboard-assets.sh

test-servers: ## the tests of this module on each server of SERVERS, which are paths, such as "redis-6.2.0/src/redis-server /usr/bin/valkey-server"
	@[ -n "$(SERVERS)" ] || { echo 'test-servers: name the binaries: make test-servers SERVERS="..."' >&2; exit 2; }
	@for bin in $(abspath $(SERVERS)); do \
		"$$bin" --version && \
		REDIS_ADDR= REDIS_SERVER_BIN="$$bin" scripts/with-redis.sh go test -count=1 -timeout 15m ./... || exit 1; \
	done

# The modules that are released are tried as tags of a scratch clone, by somebody who has only a file proxy.
release-check: ## that HEAD can be released as VERSION (the next minor one): tags in a scratch clone, go get, README's program, the tool, the API
	@scripts/with-redis.sh go run ./scripts/release -version "$(VERSION)"

release: ## release-check, and then its commit and tags in this repository, for you to push
	@scripts/with-redis.sh go run ./scripts/release -version "$(VERSION)" -tag

lint: ## gofmt, go vet, staticcheck and go mod tidy, in every module; the prose and the links of documents; workflows; the compose file
	@STATICCHECK=$(STATICCHECK) ACTIONLINT=$(ACTIONLINT) COMPOSE=$(COMPOSE) scripts/lint.sh

vuln: ## known vulnerabilities of each module and of what it requires, if their database can be reached
	@GOVULNCHECK=$(GOVULNCHECK) scripts/vuln.sh

bench: ## the whole beside its peers on a real Redis, into benchmarks/results.md and the README
	@scripts/with-redis.sh sh -c 'cd benchmarks && go run . -out results -readme ../README.md'

bench-cluster: ## what a Cluster of six nodes costs: lateness of each node, CPU, connections, idle commands, partitions, MIGRATE, PUBLISH
	@BENCH_CLUSTER=1 scripts/with-redis.sh go -C benchmarks test -count=1 -v -timeout 15m ./cluster

bench-cluster-smoke: ## that make bench-cluster works, with a fiftieth of everything
	@BENCH_CLUSTER=smoke scripts/with-redis.sh go -C benchmarks test -count=1 -timeout 5m ./cluster

bench-smoke: ## that every scenario of make bench works, in tiny sizes
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && trap 'exit 1' INT TERM && cp README.md "$$dir" && \
	scripts/with-redis.sh sh -c 'cd benchmarks && go test . && go run . -smoke -out "$$1/results" -readme "$$1/README.md"' - "$$dir" && \
	test -s "$$dir/results.md" && test -s "$$dir/results.json" && \
	{ cmp -s README.md "$$dir/README.md"; test $$? = 1; } # the table is written there

bench-otel: ## what traces and metrics cost Redis and the client, in percent of the CPU time without them
	@scripts/with-redis.sh go -C otel test -run '^$$' -bench Cost -benchtime 21x -timeout 20m .

bench-prometheus: ## what a scrape each 15 seconds costs Redis and the client, in percent of the CPU time of 10,000 messages a second
	@scripts/with-redis.sh go -C prometheus test -run '^$$' -bench Cost -benchtime 9x -timeout 20m .

# A package that cannot be installed leaves out the systems that need it, by name.
bench-peers: ## the whole beside what else can delay messages (River, BullMQ, NATS, RabbitMQ...), half an hour, into benchmarks/peers/results.md and docs/choose.md
	@for package in redis-server postgresql-15 rabbitmq-server $$(command -v npm >/dev/null || echo nodejs npm); do \
		scripts/install.sh $$package || echo "bench-peers: no $$package" >&2; \
	done
	@cd benchmarks/peers && go run . -out results -choose ../../docs/choose.md

bench-peers-smoke: ## that make bench-peers works, in tiny sizes, for what needs Redis, Node.js and Go only
	@command -v redis-server >/dev/null || scripts/install.sh redis-server
	@cd benchmarks/peers && go test . && go run . -smoke -peers '$(PEERS)'

microbench: ## the benchmarks of single parts
	@scripts/with-redis.sh go test -run '^$$' -bench . -benchmem ./...

microbench-smoke: ## that each Go benchmark works, in its smallest form
	@scripts/with-redis.sh scripts/microbench-smoke.sh

# The tools that documents name and nothing else runs, in their smallest forms. TestCIRunsWhatDocumentsName finds them.
commands-smoke: ## that the commands of documents work which no other target runs
	@$(MAKE) --no-print-directory help >/dev/null
	@$(MAKE) --no-print-directory lua NAME=claim >/dev/null
	@$(MAKE) --no-print-directory soak SOAK=5s
	@$(MAKE) --no-print-directory bench-peers-smoke PEERS='^redisdelay$$$$' >/dev/null
	@$(MAKE) --no-print-directory pairs-smoke
	@$(MAKE) --no-print-directory stress-smoke
	@$(MAKE) --no-print-directory bench-cluster-smoke >/dev/null

pairs: ## this tree beside the commit BASE, in ROUNDS (5) pairs in turns, ten minutes (LIMIT) at most; RUN=life chooses measurements
	@[ -n "$(BASE)" ] || { echo 'pairs: name the commit to compare with: make pairs BASE=<commit>' >&2; exit 2; }
	@command -v redis-server >/dev/null || scripts/install.sh redis-server
	@cd benchmarks && GOFLAGS=-trimpath go run ./pairs -base "$(BASE)" -run "$(RUN)" -rounds $(ROUNDS) -limit $(LIMIT)

pairs-smoke: ## that make pairs works, in tiny sizes, with the last commit
	@command -v redis-server >/dev/null || scripts/install.sh redis-server
	@cd benchmarks && go test ./pairs ./internal/... && GOFLAGS=-trimpath go run ./pairs -base HEAD -smoke >/dev/null

model: ## MODEL_SEQUENCES (1,000) random sequences of transitions on each server, compared with a model; ten times as many histories of the consumer's machine, and crashes
	@MODEL_SEQUENCES=$(MODEL_SEQUENCES) scripts/with-redis.sh go test -count=1 -timeout 30m -run TestManySequencesOfTransitions ./internal/queue
	@MODEL_SEQUENCES=$(MODEL_SEQUENCES) go test -count=1 -timeout 30m -run 'TestMachineKeepsItsRulesInAnyHistory|TestPoison|TestAProcessThatStoodStill' ./internal/consume -rapid.checks=$(MODEL_SEQUENCES)

stress: ## the long tests that look for rare interleavings
	@STRESS=1 scripts/with-redis.sh go test -race -count=1 -tags=stress -timeout 60m -run 'Stress|OnARunningPipeline' ./tests/... ./admin

stress-smoke: ## that make stress works: one of its tests
	@scripts/with-redis.sh go test -count=1 -tags=stress -run 'TestStressIdleCommands/one_process' ./tests

faults: ## all that can fail does, in the long form, a table of what that showed, into tests/faults/results.md
	@scripts/with-redis.sh scripts/faults.sh

periodic: ## 200 recurring schedules in 5 programs for PERIODIC_DAYS (365) days of the server's clock, with kills of both and a slow Message, compared with the calendar; and what 10,000 schedules cost
	@PERIODIC_DAYS=$(PERIODIC_DAYS) PERIODIC_SCHEDULES=200 scripts/with-redis.sh go test -count=1 -timeout 120m -v -run TestKilledProgramsAndServersKeepTheCalendar ./periodic
	@scripts/with-redis.sh go test -run '^$$' -bench BenchmarkSchedules -benchtime 1x ./periodic

soak: ## random faults for SOAK (1h), a verdict and figures
	@SOAK=$(SOAK) scripts/with-redis.sh scripts/soak.sh

fuzz: ## every fuzz target for FUZZTIME (30s)
	@FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

cover: ## test coverage of all packages together, by tests/components too, in cover.out
	@scripts/with-redis.sh sh -c '\
		go test -count=1 -timeout 20m -coverpkg=./... -coverprofile=cover.out ./... && \
		cd tests/components && go test -count=1 -timeout 10m -coverpkg=github.com/redisdelay/watermill-redisdelay/... -coverprofile=cover.out ./...'
	@tail -n +2 tests/components/cover.out >>cover.out
	@go tool cover -func=cover.out | tail -n 1

lua: ## the scripts as a server gets them, with the line numbers of its errors; NAME=claim for one
	@go run ./internal/queue/lua $(NAME)
