// Command release makes the tags of a release in a scratch clone of this repository, and tries them
// as a stranger would: in a directory outside of it, with modules that come from a file proxy. The
// commands make release-check and make release call it.
//
//	release [-version vX.Y.Z] [-tag] [-redis HOST:PORT]
//
// -version is the version, by default the next minor one. -tag brings the commit and the tags that
// were tried into this repository, and prints the command that publishes them. Without it, nothing
// of this repository changes. -redis is the server that the tool's doctor looks at, $REDIS_ADDR by
// default. It exits with 1 if anything is wrong.
//
//   - main.go has the steps.
//   - changelog.go reads and closes the section of CHANGELOG.md.
//   - tags.go makes the clone, the commit and the tags.
//   - proxy.go has the go command serve the tags as modules.
//   - api.go compares the exported API with that of the last release.
//   - stranger.go uses the modules.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// modules are the directories of the modules that are released, each after those that it requires.
// The others of this repository are examples, tests and benchmarks: nobody can require them.
var modules = []string{".", "otel", "prometheus", tool}

// tool is the directory of the command line tool, the only program that strangers install.
const tool = "cmd/redisdelay"

// release is one version that is being tried.
type release struct {
	repository string // whose HEAD is released
	version    string // such as v1.2.3
	last       string // the last release; "": there is none
	path       string // of the library's module
	scratch    string // for all files
	clone      string // the clone in scratch
	redis      string // HOST:PORT of a server
	named      bool   // the version was given
}

func main() {
	version := flag.String("version", "", "the version; default: the next minor one")
	tag := flag.Bool("tag", false, "bring the commit and the tags into this repository")
	redis := flag.String("redis", os.Getenv("REDIS_ADDR"), "`HOST:PORT` of a Redis server")
	flag.Parse()
	scratch, err := os.MkdirTemp("", "release")
	if err == nil {
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
		go func() {
			<-interrupted
			_ = os.RemoveAll(scratch)
			os.Exit(1)
		}()
		err = try(".", *version, *redis, scratch, *tag)
		err = errors.Join(err, os.RemoveAll(scratch))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// try tries a version, and with tag brings its tags into the repository.
func try(repository, version, redis, scratch string, tag bool) error {
	r, err := newRelease(repository, version, scratch)
	if err != nil {
		return err
	}
	if r.redis = redis; redis == "" {
		return errors.New("no Redis: run it by scripts/with-redis.sh, or set REDIS_ADDR or -redis")
	}
	if tag {
		if err := r.mayTag(); err != nil {
			return err
		}
	}
	fmt.Printf("release: trying %s of %s\n", r.version, r.path)
	steps := []struct {
		name string
		do   func() (string, error)
	}{
		{"commit", r.commit},
		{"api", r.compareAPI},
		{"get", r.get},
		{"readme", r.compileReadme},
		{"install", r.install},
		{"doctor", r.doctor},
		{"ui", r.ui},
	}
	for _, step := range steps {
		began := time.Now()
		said, err := step.do()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("release: %-8s %s (%.1f s)\n", step.name, said, time.Since(began).Seconds())
	}
	if err := r.mayTag(); !tag && err != nil {
		fmt.Printf("release: all of that holds, and make release refuses yet: %v\n", err)
		return nil
	}
	if !tag {
		fmt.Printf("release: %s can be released: make release VERSION=%s\n", r.version, r.version)
		return nil
	}
	return r.bring()
}

// newRelease returns the release of a version, or of the next minor one if version is empty.
func newRelease(repository, version, scratch string) (*release, error) {
	repository, err := filepath.Abs(repository)
	if err != nil {
		return nil, err
	}
	r := &release{repository: repository, version: version, scratch: scratch, clone: filepath.Join(scratch, "clone"), named: version != ""}
	if r.last, err = r.lastTag(); err != nil {
		return nil, err
	}
	next, first := "v0.1.0", parsed(r.last)
	if r.last != "" {
		next = fmt.Sprintf("v%d.%d.0", first[0], first[1]+1)
	}
	r.version = cmp.Or(version, next)
	if !isVersion(r.version) {
		return nil, fmt.Errorf("%q is no version, such as v0.1.0", r.version)
	}
	if r.last != "" && !later(r.version, r.last) {
		return nil, fmt.Errorf("%s is not later than the last release, %s", r.version, r.last)
	}
	for _, dir := range modules {
		if name := tag(dir, r.version); exists(repository, name) {
			return nil, fmt.Errorf("the tag %s exists; if it was never pushed: git tag -d %s", name, name)
		}
	}
	r.path, err = output(repository, []string{"GOWORK=off"}, "go", "list", "-m")
	return r, err
}

// module returns the module path of a directory.
func (r *release) module(dir string) string {
	if dir == "." {
		return r.path
	}
	return r.path + "/" + dir
}

// tag returns the tag of a module's version, as the go command looks for it.
func tag(dir, version string) string {
	if dir == "." {
		return version
	}
	return dir + "/" + version
}

// failure is the error of a command that ended with an exit code.
type failure struct{ command, stdout, stderr string }

func (f *failure) Error() string {
	return f.command + " failed:\n" + strings.TrimSpace(f.stderr+f.stdout)
}

// output runs a command in a directory, with settings besides the environment, and returns its
// standard output. The error is a *failure if the command ran and failed.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = &failure{strings.Join(append([]string{filepath.Base(name)}, args...), " "), string(out), stderr.String()}
	}
	return strings.TrimSpace(string(out)), err
}
