package redisdelay_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallestForms says how CI runs a command that a document names, if that is no target that .ci/run
// runs itself. Each command of a document, and each target of the Makefile, has to match a pattern.
// A new one is refused until it has its line here.
var smallestForms = []struct {
	command string // pattern of whole commands
	ci      string // the target of the Makefile, reached from .ci/run, that runs its smallest form; "": none does
	how     string // what that form is, or why there is none
}{
	{`make bench`, "bench-smoke", "every scenario in tiny sizes"},
	{`make pairs( .*)?`, "pairs-smoke", "one round of tiny sizes, with the last commit"},
	{`make microbench`, "microbench-smoke", "each benchmark once"},
	{`make bench-otel`, "microbench-smoke", "its benchmark once, with 100 messages"},
	{`make bench-prometheus`, "microbench-smoke", "its benchmark once, for 20 ms"},
	{`scripts/with-redis.sh go test ./admin -run xxx -bench BenchmarkBulk`, "microbench-smoke", "its benchmark once"},
	{`make periodic`, "test", "the same test with fewer days; microbench-smoke runs its benchmark"},
	{`make slowest`, "test", "the same tests without the list"},
	{`make faults`, "test-ci", "tests/faults in the short form"},
	{`make fuzz( .*)?`, "test", "the seeds of each target"},
	{`make stress`, "stress-smoke", "one of its tests; make test has the others in another form"},
	{`make cover`, "test", "the same tests without the figures"},
	{`make test-servers( .*)?`, "test", "the same tests on the server that is installed"},
	{`make dashboard-large`, "test-dashboard", "the same tests with fewer messages"},
	{`make dashboard-pictures`, "test-dashboard", "the same pages without the pictures"},
	{`make bench-cluster`, "bench-cluster-smoke", "a fiftieth of everything"},
	{`make bench-peers`, "bench-peers-smoke", "this system alone, in tiny sizes"},
	{`make release( .*)?`, "release-check", "the same in a scratch clone"},
	{`make dashboard-assets`, "", "it downloads packages and writes what is committed"},

	{`go run ./examples/.*`, "test", "the example's test"},
	{`go -C examples/outbox run \.`, "test-brokers", "the example's test"},
	{`go -C examples/.* run \.`, "test-ci", "the example's test"},
	{`go -C \.\./watermill-redisdelay run ./examples/tutorial/devredis`, "test", "the test of the tutorial"},
	{`(cd benchmarks && )?go run \. (-run|-trials) .*`, "bench-smoke", "every scenario in tiny sizes"},
	{`go run \. (-peers|-messages) .*`, "bench-peers-smoke", "this system alone, in tiny sizes"},
	{`scripts/with-redis\.sh go test -run '\^\$' -bench .*`, "microbench-smoke", "each benchmark once"},
	{`scripts/with-redis\.sh \./redisdelay\.test .*`, "microbench-smoke", "each benchmark once"},
	{`go test -run '\^\$' -bench .*`, "microbench-smoke", "each benchmark once"},
	{`scripts/with-redis\.sh go test -run TenThousand -v \./admin`, "test", "the same test"},
	{`scripts/with-redis\.sh go -C prometheus test .*`, "test-ci", "the same test"},
	{`go test -v -run AYear \./redisdelaytest`, "test", "the same tests without the figures"},
	{`go test( -c)?`, "test", "the test of the tutorial, and all others"},
	{`go -C (\.\./watermill-redisdelay/)?cmd/redisdelay (install|build) .*`, "test-ci", "its tests build the tool"},
	{`go test \./\.\.\.`, "test", "itself, and more"},
	{`(GOWORK=off )?go (get|mod tidy|mod init|mod edit|install|build|tool).*`, "", "it changes the reader's module, or is Go's own"},
}

// mostNotRun is how many lines of smallestForms may have a reason instead of a target of CI.
const mostNotRun = 2

// ciTargets returns the targets of the Makefile that .ci/run runs, those that they call included.
func ciTargets(t *testing.T) map[string]bool {
	t.Helper()
	makefile := read(t, "Makefile")
	reached := map[string]bool{}
	next := submatches(`(?m)^make ([a-z-]+)`, read(t, ".ci/run"))
	for len(next) > 0 {
		target := next[0]
		next = next[1:]
		if reached[target] {
			continue
		}
		reached[target] = true
		recipe := regexp.MustCompile(`(?m)^` + target + `:(.*)\n((?:\t.*\n)*)`).FindStringSubmatch(makefile)
		require.NotNil(t, recipe, "the Makefile has no target %s", target)
		next = append(next, submatches(`\$\(MAKE\) (?:--no-print-directory )?([a-z-]+)`, recipe[2])...)
		prerequisites, _, _ := strings.Cut(recipe[1], "##")
		next = append(next, strings.Fields(prerequisites)...)
	}
	return reached
}

// documentedCommands returns the commands that documents name: in blocks of code, and as code in a
// sentence. Those of the tool are in the tests of cmd/redisdelay.
func documentedCommands(t *testing.T) map[string]string {
	t.Helper()
	commands := map[string]string{}
	for _, file := range documents(t) {
		if file == "CHANGELOG.md" {
			continue
		}
		text := read(t, file)
		found := submatches("(?m)^(?:    |\t)(?:\\$ )?((?:make|go|GOWORK=off|cd|scripts/|\\./)[^\n]*)$", text)
		for _, block := range submatches("(?s)```(?:sh|bash|console)\n(.*?)```", text) {
			found = append(found, submatches(`(?m)^(?:\$ )?((?:make|go|GOWORK=off|scripts/)[^\n]*)$`, block)...)
		}
		found = append(found, submatches("`((?:make|go run|go test|go get|go install|scripts/with-redis\\.sh) [^`\n]+)`", text)...)
		for _, command := range found {
			command, _, _ = strings.Cut(command, " #")
			if strings.HasPrefix(command, "go ") || !strings.HasPrefix(command, "go") { // no word such as "goroutine"
				commands[strings.TrimSpace(command)] = file
			}
		}
	}
	return commands
}

func TestCIRunsWhatDocumentsName(t *testing.T) {
	targets := ciTargets(t)
	commands := documentedCommands(t)
	require.Greater(t, len(commands), 50)
	for _, target := range submatches(`(?m)^([a-z-]+):`, read(t, "Makefile")) {
		if _, named := commands["make "+target]; !named {
			commands["make "+target] = "Makefile"
		}
	}
	used := map[int]bool{}
	for command, file := range commands {
		if words := strings.Fields(command); words[0] == "make" && targets[words[1]] {
			continue
		}
		i := slices.IndexFunc(smallestForms, func(form struct{ command, ci, how string }) bool {
			return regexp.MustCompile("^(?:" + form.command + ")$").MatchString(command)
		})
		if i < 0 {
			t.Errorf("%s names %q: no target of .ci/run runs it, and smallestForms does not say what does", file, command)
			continue
		}
		used[i] = true
	}
	notRun := 0
	for i, form := range smallestForms {
		require.NotEmpty(t, form.how, form.command)
		require.True(t, used[i], "no document names %s", form.command)
		if form.ci == "" {
			notRun++
		} else {
			require.True(t, targets[form.ci], "%s: .ci/run does not run make %s", form.command, form.ci)
		}
	}
	require.LessOrEqual(t, notRun, mostNotRun)
}

// Each example that a document names has a test, which is its smallest form.
func TestExamplesThatDocumentsNameHaveTests(t *testing.T) {
	for command, file := range documentedCommands(t) {
		for _, dir := range submatches(`^go (?:-C (examples/[a-z-]+) run \.|.*)`, command) {
			if dir != "" {
				require.FileExists(t, path.Join(dir, "main_test.go"), file)
			}
		}
		for _, dir := range submatches(`^go run \./(examples/[a-z-]+)`, command) {
			require.FileExists(t, path.Join(dir, "main_test.go"), file)
		}
	}
}
