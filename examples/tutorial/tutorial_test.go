//go:build unix

// Package tutorial_test follows docs/tutorial.md word by word, in an empty directory.
package tutorial_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// On the embedded server, ^C is what it says. On the real one, it is a SIGTERM.
func TestReaderOfTheTutorialGetsWhatItSays(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		r := newReader(t, "127.0.0.1:0", syscall.SIGINT)
		r.run(0, `go -C ../watermill-redisdelay build -o "$PWD/devredis" ./examples/tutorial/devredis`)
		redis := r.start("./devredis")
		redis.await(t, 1)
		r.useServer(strings.TrimSpace(strings.TrimPrefix(redis.printed(), "Redis at ")))
		r.follow()
		redis.signal(syscall.SIGINT)
		redis.end(t)
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		redis := redistest.Start(t, "--appendonly", "yes")
		newReader(t, redis.Addr(), syscall.SIGTERM).follow()
	})
}

// block is a block of code, with the paragraph before it.
type block struct{ step, before, language, code string }

func blocks(t *testing.T) (found []block) {
	t.Helper()
	text, err := os.ReadFile("../../docs/tutorial.md")
	require.NoError(t, err)
	pattern := regexp.MustCompile("(?s)\n## (\\d)|((?:[^\n]+\n)*)\n```(\\w+)\n(.*?)```\n")
	step := ""
	for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" {
			step = m[1]
			continue
		}
		found = append(found, block{step, m[2], m[3], m[4]})
	}
	require.Equal(t, strings.Count(string(text), "\n```"), 2*len(found), "a block is not seen")
	return found
}

// reader is somebody who follows the tutorial in a directory of his own.
type reader struct {
	t         *testing.T
	dir       string // the shop's
	addr      string // of Redis
	env       []string
	interrupt syscall.Signal // what ^C sends
}

func newReader(t *testing.T, addr string, interrupt syscall.Signal) *reader {
	t.Helper()
	here, err := filepath.Abs("../..")
	require.NoError(t, err)
	top := t.TempDir()
	require.NoError(t, os.Symlink(here, filepath.Join(top, "watermill-redisdelay"))) // stands for the clone
	require.NoError(t, os.Mkdir(filepath.Join(top, "shop"), 0o755))
	r := &reader{t: t, dir: filepath.Join(top, "shop"), interrupt: interrupt}
	r.useServer(addr)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("shop.log:\n%s", r.read("shop.log"))
		}
	})
	return r
}

// useServer has commands use a server that is not at localhost:6379.
func (r *reader) useServer(addr string) {
	r.addr, r.env = addr, append(os.Environ(), "REDIS_ADDR="+addr)
}

// follow does all that the tutorial says. After each step, the files have to be those of the
// repository.
func (r *reader) follow() {
	found := blocks(r.t)
	require.NotEmpty(r.t, found)
	for i, b := range found {
		switch b.language {
		case "sh":
			for _, command := range strings.Split(strings.TrimSpace(b.code), "\n") {
				r.setUp(command)
			}
		case "go":
			r.write(b.file(r.t), b.code)
		case "diff":
			r.write(b.file(r.t), changed(r.t, r.read(b.file(r.t)), b.code))
		case "console":
			r.play(b.code)
		default:
			r.t.Fatalf("a block of %q", b.language)
		}
		if i == len(found)-1 || found[i+1].step != b.step {
			r.requireFilesOf("step" + b.step)
		}
	}
	r.requireNothingLost()
}

// setUp runs a command whose output the tutorial does not show.
func (r *reader) setUp(command string) {
	switch command {
	case "export REDISDELAY_REDIS=localhost:6379":
		r.env = append(r.env, "REDISDELAY_REDIS="+r.addr)
	case "git clone https://github.com/redisdelay/watermill-redisdelay", "mkdir shop", "cd shop": // see newReader
	default:
		r.run(0, command)
	}
}

var fileName = regexp.MustCompile("`([a-z_/]+\\.go)`")

// file is the last file that the paragraph before a block names.
func (b block) file(t *testing.T) string {
	t.Helper()
	names := fileName.FindAllStringSubmatch(b.before, -1)
	require.NotEmpty(t, names, "no file is named before\n%s", b.code)
	return names[len(names)-1][1]
}

// changed applies a diff. Each part of it must fit in exactly one place.
func changed(t *testing.T, text, diff string) string {
	t.Helper()
	for _, part := range strings.Split("\n"+diff, "\n@@\n")[1:] {
		var before, after strings.Builder
		for _, line := range strings.SplitAfter(strings.TrimSuffix(part, "\n")+"\n", "\n") {
			if line == "" {
				continue
			}
			if line[0] != '+' {
				before.WriteString(line[1:])
			}
			if line[0] != '-' {
				after.WriteString(line[1:])
			}
		}
		require.Equal(t, 1, strings.Count(text, before.String()), "where is\n%s\nin\n%s", before.String(), text)
		text = strings.Replace(text, before.String(), after.String(), 1)
	}
	return text
}

func (r *reader) read(file string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, file))
	require.NoError(r.t, err)
	return string(text)
}

func (r *reader) write(file, text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o644))
}

func (r *reader) requireFilesOf(step string) {
	r.t.Helper()
	names := func(dir string) (names []string) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(r.t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				names = append(names, filepath.Base(file))
			}
		}
		return names
	}
	want := names(step)
	require.NotEmpty(r.t, want, step)
	require.Equal(r.t, want, names(r.dir), "files after %s", step)
	for _, name := range want {
		text, err := os.ReadFile(filepath.Join(step, name))
		require.NoError(r.t, err)
		require.Equal(r.t, string(text), r.read(name), "%s after %s", name, step)
	}
}

// play runs the commands of a console, and compares what they print. A command that the tutorial
// ends by ^C is interrupted when it has printed all that comes before. Lines of serve can come in
// any order, because several handlers print them.
func (r *reader) play(console string) {
	r.t.Helper()
	for _, session := range strings.Split("\n"+console, "\n$ ")[1:] {
		command, output, _ := strings.Cut(session, "\n")
		output = strings.TrimSuffix(output, "\n")
		before, after, interrupted := strings.Cut(output, "^C")
		p := r.start(command)
		if interrupted {
			p.await(r.t, strings.Count(before, "\n"))
			p.signal(r.interrupt)
		}
		printed, status := p.end(r.t)
		wantStatus := 0
		if strings.HasSuffix(command, " doctor") {
			wantStatus = 1 // it found a problem
		}
		require.Equal(r.t, wantStatus, status, "$ %s\n%s", command, printed)
		want, got := plain(before+strings.TrimPrefix(after, "\n")), plain(printed)
		if strings.HasSuffix(command, " serve") {
			slices.Sort(want)
			slices.Sort(got)
		}
		require.Equal(r.t, want, got, "$ %s\n%s", command, printed)
	}
}

var varying = []struct {
	pattern *regexp.Regexp
	is      string
}{
	{regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`, which is \S+ behind`), ""}, // half a minute after the last delivery
	{regexp.MustCompile(`\b\d+(\.\d+)?s\b`), "DURATION"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// plain are the lines of an output without times, IDs and the width of columns, and without what
// doctor says about the server's settings.
func plain(output string) (lines []string) {
	for _, v := range varying {
		output = v.pattern.ReplaceAllString(output, v.is)
	}
	for _, line := range strings.Split(strings.TrimSpace(output), "\n") {
		if !strings.HasPrefix(line, "warning Of Redis, ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// requireNothingLost checks that only messages are left that are due in a day, and that each
// order has ended.
func (r *reader) requireNothingLost() {
	r.t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(r.run(0, "./redisdelay topics --json")), "\n") {
		require.NotRegexp(r.t, `"(ready|in_hand|retrying|dead)":[1-9]`, line)
	}
	for i, status := range []string{"cancelled", "paid", "paid", "paid", "paid", "paid"} {
		order := fmt.Sprintf("A-%d", i+1)
		require.Equal(r.t, order+" is "+status+"\n", r.run(0, "./shop place "+order+" 24h"))
	}
}

// run runs a command to its end.
func (r *reader) run(wantStatus int, command string) string {
	r.t.Helper()
	out, status := r.start(command).end(r.t)
	require.Equal(r.t, wantStatus, status, "$ %s\n%s", command, out)
	return out
}

// process is a command that runs, in a process group of its own, as in a terminal.
type process struct {
	cmd  *exec.Cmd
	more chan struct{} // receives after something was printed

	mu  sync.Mutex
	out bytes.Buffer
}

func (r *reader) start(command string) *process {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	r.t.Cleanup(cancel)
	p := &process{cmd: exec.CommandContext(ctx, "sh", "-c", "exec env "+command), more: make(chan struct{}, 1)}
	p.cmd.Dir, p.cmd.Env = r.dir, r.env
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	require.NoError(r.t, p.cmd.Start(), command)
	return p
}

// Write takes what the command prints.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Write(text)
	select {
	case p.more <- struct{}{}:
	default: // a notice is waiting already
	}
	return len(text), nil
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// await waits until the command has printed so many lines.
func (p *process) await(t *testing.T, lines int) {
	t.Helper()
	limit := time.After(time.Minute)
	for strings.Count(p.printed(), "\n") < lines {
		select {
		case <-p.more:
		case <-limit:
			t.Fatalf("%s has not printed %d lines:\n%s", p.cmd, lines, p.printed())
		}
	}
}

func (p *process) signal(signal syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, signal) // it may have ended
}

// end waits for the end of the command, and returns what it printed and its status.
func (p *process) end(t *testing.T) (printed string, status int) {
	t.Helper()
	_ = p.cmd.Wait() // the status says it
	return p.printed(), p.cmd.ProcessState.ExitCode()
}
