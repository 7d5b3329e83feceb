package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const library = "github.com/redisdelay/watermill-redisdelay"

// files are those of a small repository with the modules of this one.
func files() map[string]string {
	mod := func(dir string, required ...string) string {
		text := "module " + strings.TrimSuffix(library+"/"+dir, "/") + "\n\ngo 1.25.0\n"
		for _, other := range required {
			text += "\nrequire " + strings.TrimSuffix(library+"/"+other, "/") + " v0.0.0\n"
		}
		return text
	}
	replace := "\nreplace " + library + " => ..\n"
	return map[string]string{
		"go.mod":                   mod(""),
		"redisdelay.go":            "package redisdelay\n\n// Publisher publishes.\ntype Publisher struct{}\n\n// Publish does it.\nfunc (*Publisher) Publish() {}\n",
		"otel/go.mod":              mod("otel", "") + replace,
		"otel/otel.go":             "package otel\n\nimport _ \"" + library + "\"\n",
		"prometheus/go.mod":        mod("prometheus", "") + replace,
		"prometheus/prometheus.go": "package prometheus\n\nimport _ \"" + library + "\"\n",
		"examples/x/go.mod":        mod("examples/x", "", "prometheus"),
		"cmd/redisdelay/go.mod":    mod("cmd/redisdelay", "", "prometheus"),
		"cmd/redisdelay/main.go":   tinyTool,
		"README.md":                "# Library\n\n```go\nfunc remind(p redisdelay.Publisher) { p.Publish() }\n```\n",
		"CHANGELOG.md":             "# Changelog\n\n## [Unreleased]\n\nThe first version.\n",
	}
}

// tinyTool is a tool that does as little as it may.
const tinyTool = `package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"

	_ "` + library + `"
	_ "` + library + `/prometheus"
)

func main() {
	switch os.Args[1] {
	case "version":
		info, _ := debug.ReadBuildInfo()
		fmt.Printf("{\"version\": %q}\n", info.Main.Version)
	case "ui":
		listener, _ := net.Listen("tcp", "localhost:0")
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt)
		fmt.Printf("The page is at http://%s/, until Ctrl-C.\n", listener.Addr())
		go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "no topics") }))
		<-interrupted
	}
}
`

// repository makes a repository of the files, with the changes, in one commit.
func repository(t *testing.T, changes map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	git(t, dir, "config", "user.name", "test")
	git(t, dir, "config", "user.email", "test@localhost")
	all := files()
	for name, text := range changes {
		all[name] = text
	}
	write(t, dir, all)
	return dir
}

// write writes files and commits them.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "Change files")
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := output(dir, nil, "git", args...)
	require.NoError(t, err)
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// released returns the release of a version, with its commit and tags made.
func released(t *testing.T, repository, version string) *release {
	t.Helper()
	r, err := newRelease(repository, version, t.TempDir())
	require.NoError(t, err)
	_, err = r.commit()
	require.NoError(t, err)
	return r
}

// With -tag, the tags that were tried become those of the repository. They are on one commit, in
// which each module requires the version.
func TestReleaseIsTriedAndTagged(t *testing.T) {
	t.Parallel()
	dir := repository(t, nil)
	before := git(t, dir, "rev-parse", "HEAD")
	require.NoError(t, try(dir, "v0.1.0", "localhost:6379", t.TempDir(), true))

	require.Equal(t, "cmd/redisdelay/v0.1.0\notel/v0.1.0\nprometheus/v0.1.0\nv0.1.0", git(t, dir, "tag"))
	require.Equal(t, before, git(t, dir, "rev-parse", "HEAD~1"))
	for _, tag := range []string{"v0.1.0", "otel/v0.1.0", "prometheus/v0.1.0", "cmd/redisdelay/v0.1.0"} {
		require.Equal(t, git(t, dir, "rev-parse", "HEAD"), git(t, dir, "rev-parse", tag+"^{commit}"))
	}
	require.Empty(t, git(t, dir, "status", "--porcelain"))
	for _, file := range strings.Fields(git(t, dir, "ls-files", "*go.mod")) {
		require.NotContains(t, read(t, filepath.Join(dir, file)), "v0.0.0", file)
	}
	require.Regexp(t, `^# Changelog\n\n## \[Unreleased\]\n\n## \[0.1.0\] - \d{4}-\d\d-\d\d\n\nThe first version.\n$`, read(t, filepath.Join(dir, "CHANGELOG.md")))
}

// A check leaves the repository as it is, and works where nothing is new.
func TestCheckChangesNothing(t *testing.T) {
	t.Parallel()
	dir := repository(t, map[string]string{"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n"})
	before := git(t, dir, "show-ref")
	require.NoError(t, try(dir, "", "localhost:6379", t.TempDir(), false))
	require.Equal(t, before, git(t, dir, "show-ref"))
	require.Empty(t, git(t, dir, "status", "--porcelain"))

	require.ErrorContains(t, try(dir, "v0.1.0", "localhost:6379", t.TempDir(), false), "commit: CHANGELOG.md has nothing under ## [Unreleased]")
	require.ErrorContains(t, try(dir, "", "localhost:6379", t.TempDir(), true), "name the version")
	require.ErrorContains(t, try(dir, "0.1", "localhost:6379", t.TempDir(), false), `"0.1" is no version`)
	require.ErrorContains(t, try(dir, "v0.1.0", "", t.TempDir(), false), "no Redis")
}

// make release wants a repository that is as it will be published.
func TestTagsNeedACleanRepository(t *testing.T) {
	t.Parallel()
	dir := repository(t, map[string]string{"docs/tutorial.md": "Until the first release, use a clone.\n"})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new.go"), nil, 0o644))
	err := try(dir, "v0.1.0", "localhost:6379", t.TempDir(), true)
	require.ErrorContains(t, err, "there are uncommitted changes:\n?? new.go")
	require.ErrorContains(t, err, "docs/tutorial.md:1:Until the first release")
	require.Empty(t, git(t, dir, "tag"))

	git(t, dir, "tag", "prometheus/v0.1.0")
	err = try(dir, "v0.1.0", "localhost:6379", t.TempDir(), false)
	require.ErrorContains(t, err, "the tag prometheus/v0.1.0 exists; if it was never pushed: git tag -d prometheus/v0.1.0")
}

func TestModuleThatRequiresAnotherVersionIsFound(t *testing.T) {
	t.Parallel()
	r, err := newRelease(repository(t, nil), "v0.1.0", t.TempDir())
	require.NoError(t, err)
	git(t, r.scratch, "clone", "-q", r.repository, r.clone)
	require.NoError(t, r.closeChangelog())
	require.NoError(t, r.tagAll("Tag what requires v0.0.0")) // without r.require
	_, err = r.get()
	require.ErrorContains(t, err, "go get "+library+"/otel@v0.1.0 failed")
	require.ErrorContains(t, err, library+"@v0.0.0: ")
}

func TestToolWithAReplaceIsFound(t *testing.T) {
	t.Parallel()
	r := released(t, repository(t, map[string]string{
		"cmd/redisdelay/go.mod": files()["cmd/redisdelay/go.mod"] + "\nreplace " + library + " => ../..\n",
	}), "v0.1.0")
	_, err := r.get()
	require.NoError(t, err)
	_, err = r.install()
	require.ErrorContains(t, err, "replace directives")
}

func TestReadmeThatDoesNotCompileIsFound(t *testing.T) {
	t.Parallel()
	r := released(t, repository(t, map[string]string{
		"README.md": "# Library\n\n```go\nfunc remind(p redisdelay.Publisher) { p.PublishLater() }\n```\n",
	}), "v0.1.0")
	_, err := r.get()
	require.NoError(t, err)
	_, err = r.compileReadme()
	require.ErrorContains(t, err, "p.PublishLater undefined")
}

func TestReadmesProgramHasItsImports(t *testing.T) {
	t.Parallel()
	text, err := program("```go\nfunc remind(ctx context.Context, h message.HandlerFunc) { cancelOrder() } // time.Second\n```", library)
	require.NoError(t, err)
	require.Contains(t, text, "import context \"context\"\n")
	require.Contains(t, text, "\nfunc cancelOrder(")
	require.NotContains(t, text, `"time"`)
	_, err = program("# No code", library)
	require.Error(t, err)
}

// A change that breaks programs needs its name in the changelog, and a version that may break them.
func TestChangelogNamesWhatBreaks(t *testing.T) {
	t.Parallel()
	dir := repository(t, nil)
	require.NoError(t, released(t, dir, "v0.1.0").bring())
	section := "# Changelog\n\n## [Unreleased]\n\n- %s is gone.\n\n## [0.1.0] - 2026-01-02\n\n- `Publisher.Publish` is new.\n"
	write(t, dir, map[string]string{
		"redisdelay.go": "package redisdelay\n\n// Publisher publishes.\ntype Publisher struct{}\n",
		"CHANGELOG.md":  strings.Replace(section, "%s", "Publish", 1),
	})
	r := released(t, dir, "v0.1.1")
	_, err := r.compareAPI()
	require.ErrorContains(t, err, "CHANGELOG.md does not name `Publisher.Publish`, which breaks programs: (*Publisher).Publish: removed")
	require.ErrorContains(t, err, "v0.1.1 breaks programs that use v0.1.0, so it has to be v0.2.0")

	write(t, dir, map[string]string{"CHANGELOG.md": strings.Replace(section, "%s", "`Publisher.Publish`", 1)})
	said, err := released(t, dir, "").compareAPI()
	require.NoError(t, err)
	require.Equal(t, "incompatible changes since v0.1.0: 1, each named in CHANGELOG.md", said)
	_, err = newRelease(dir, "v0.1.0", t.TempDir())
	require.ErrorContains(t, err, "v0.1.0 is not later than the last release, v0.1.0")
}

// CONTRIBUTING.md says how a release is taken back: strangers get the next one, and are told.
func TestRetractedReleaseIsAvoided(t *testing.T) {
	t.Parallel()
	dir := repository(t, nil)
	require.NoError(t, released(t, dir, "v0.1.0").bring())
	write(t, dir, map[string]string{
		"go.mod":       files()["go.mod"] + "\n// It loses messages.\nretract v0.1.0\n",
		"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n- v0.1.0 is retracted.\n",
	})
	r := released(t, dir, "v0.1.1")
	_, err := r.get()
	require.NoError(t, err)
	r.version = "v0.1.0"
	_, err = r.download("tags", modules)
	require.NoError(t, err)
	env, err := r.strangers()
	require.NoError(t, err)
	found, err := output(r.stranger(0), env, "go", "list", "-m", "-versions", library)
	require.NoError(t, err)
	require.Equal(t, library+" v0.1.1", found)
	found, err = output(r.stranger(0), env, "go", "list", "-m", "-retracted", "-f", "{{.Retracted}}", library+"@v0.1.0")
	require.NoError(t, err)
	require.Equal(t, "[It loses messages.]", found)
}

// A change has the name that documents give it. A name counts only as a whole and as code.
func TestChangesAreNamedAsInDocuments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"(*Publisher).Publish: removed":                                     {"Publisher.Publish", "redisdelay.Publisher.Publish"},
		"DelayFor: removed":                                                 {"DelayFor", "redisdelay.DelayFor"},
		"PublisherConfig.Client: changed from a to b":                       {"PublisherConfig.Client", "redisdelay.PublisherConfig.Client"},
		"./admin.(*Admin).Purge: changed from func() to func() (a)":         {"Admin.Purge", "admin.Admin.Purge"},
		"./admin.Check: removed":                                            {"admin.Check"},
		"package github.com/redisdelay/watermill-redisdelay/relay: removed": {"relay"},
		"./examples/tutorial.X: removed":                                    nil,
	} {
		require.Equal(t, want, changed(text, library).names, text)
	}
	require.Equal(t, []string{"Middleware", "otel.Middleware"}, changed("Middleware: removed", library+"/otel").names)

	for section, want := range map[string]bool{
		"- `admin.Check` is gone.":           true,
		"- `admin.Check(ctx)` is gone.":      true,
		"- `Repair`, `admin.Check`.":         true,
		"- admin.Check is gone.":             false,
		"- `admin.CheckAll` is gone.":        false,
		"- `admin.Check.Field` is gone.":     false,
		"- `myadmin.Check`, `x.admin.Check`": false,
	} {
		require.Equal(t, want, names(section, []string{"admin.Check"}), section)
	}
}

// Each module of this repository is released, or is an example, a test, a benchmark or a script.
func TestEachModuleIsReleasedOrNobodysToRequire(t *testing.T) {
	t.Parallel()
	found := strings.Fields(git(t, "../..", "ls-files", "*go.mod"))
	require.Greater(t, len(found), len(modules))
	for _, file := range found {
		dir := filepath.Dir(file)
		first, _, _ := strings.Cut(dir, "/")
		if !strings.Contains("benchmarks examples scripts tests", first) {
			require.Contains(t, modules, dir)
		}
	}
}
