// Package exampletest builds and runs the examples as programs.
package exampletest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Succeeds builds the program in the test's directory, and runs it on the embedded and on the real
// server. It must end by itself with status 0, and leave no keys in Redis. check checks its output.
func Succeeds(t *testing.T, check func(t *testing.T, out string)) {
	t.Helper()
	program := Build(t)
	OnBoth(t, func(t *testing.T, addr string) {
		p := Start(t, program, addr)
		out, status := p.End(t)
		require.Zero(t, status, "%s%s", out, p.Stderr())
		check(t, out)
		RequireRemoved(t, addr, out)
	})
}

// EndsOnInterrupt does the same, but interrupts the program when it has printed a matching line,
// and expects status 130.
func EndsOnInterrupt(t *testing.T, line *regexp.Regexp, check func(t *testing.T, out string)) {
	t.Helper()
	program := Build(t)
	OnBoth(t, func(t *testing.T, addr string) {
		p := Start(t, program, addr)
		p.ReadUntil(t, line)
		p.Interrupt(t)
		interrupted := time.Now()
		out, status := p.End(t)
		require.Equal(t, 130, status, "%s%s", out, p.Stderr())
		require.Less(t, time.Since(interrupted), 5*time.Second)
		require.Regexp(t, `(?m)^Interrupted\.$`, out)
		check(t, out)
		RequireRemoved(t, addr, out)
	})
}

// Build compiles the program in the test's directory.
func Build(t *testing.T) (program string) {
	t.Helper()
	return build(t, ".")
}

func build(t *testing.T, dir string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "example")
	// Without debug information the program is linked in half the time.
	command := exec.Command("go", "build", "-ldflags=-s -w", "-o", program)
	command.Dir = dir // some are separate modules
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// OnBoth runs a test for the embedded server, where addr is empty, and for the real one.
func OnBoth(t *testing.T, test func(t *testing.T, addr string)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, "")
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, redistest.Addr(t))
	})
}

// Process is a running program.
type Process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	read   strings.Builder // of stdout
	stderr bytes.Buffer
}

// Start runs a program on the server at addr, or on its embedded one.
func Start(t *testing.T, program, addr string) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	p := &Process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.WaitDelay = time.Second // do not wait for its children
	p.cmd.Env = append(os.Environ(), "REDIS_ADDR="+addr)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.stdout = bufio.NewReader(stdout)
	require.NoError(t, p.cmd.Start())
	return p
}

// ReadUntil reads the program's output until a line matches.
func (p *Process) ReadUntil(t *testing.T, want *regexp.Regexp) {
	t.Helper()
	for {
		line, err := p.stdout.ReadString('\n')
		p.read.WriteString(line)
		if want.MatchString(strings.TrimSpace(line)) {
			return
		}
		require.NoError(t, err, p.read.String())
	}
}

// Interrupt sends the signal of Ctrl-C.
func (p *Process) Interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
}

// End waits for the end of the program, and returns its whole output on stdout.
func (p *Process) End(t *testing.T) (stdout string, status int) {
	t.Helper()
	_, err := io.Copy(&p.read, p.stdout)
	require.NoError(t, err)
	err = p.cmd.Wait()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return p.read.String(), p.cmd.ProcessState.ExitCode()
}

// Stderr returns the error output of an ended program.
func (p *Process) Stderr() string { return p.stderr.String() }

// RequireRemoved checks that a run on a real server left no keys.
func RequireRemoved(t *testing.T, addr, out string) {
	t.Helper()
	if addr == "" {
		return
	}
	keys := regexp.MustCompile(`keys (\S+:\*)`).FindStringSubmatch(out)
	require.Len(t, keys, 2, out)
	left := redistest.Client(t).Scan(context.Background(), 0, keys[1], 1000).Iterator()
	for left.Next(context.Background()) {
		t.Errorf("%s is left", left.Val())
	}
	require.NoError(t, left.Err())
}
