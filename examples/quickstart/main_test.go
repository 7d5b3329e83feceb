package main

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

	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEveryTimeoutComesAndNoneEarly(t *testing.T) {
	program := build(t)
	onBoth(t, func(t *testing.T, addr string) {
		began := time.Now()
		out, status := start(t, program, addr).end(t)
		require.Zero(t, status, out)
		require.Less(t, time.Since(began), 10*time.Second)

		require.Regexp(t, `Published 8 messages`, out)
		lines := deliveryLine.FindAllStringSubmatch(out, -1)
		require.Len(t, lines, 9, out)
		times := map[string]int{}
		for i, line := range lines {
			times[line[2]]++
			if i > 0 {
				require.LessOrEqual(t, lines[i-1][1], line[1], "in order of due time")
			}
		}
		require.Equal(t, map[string]int{"A-1": 1, "A-2": 1, "A-3": 1, "A-4": 2, "A-5": 1, "A-6": 1, "A-7": 1, "A-8": 1}, times)
		require.Regexp(t, `(?m)^9 deliveries, 1 of them retries; early: 0; the latest came \d+\.\d ms after it was due\.$`, out)
		requireRemoved(t, addr, out)
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	program := build(t)
	onBoth(t, func(t *testing.T, addr string) {
		p := start(t, program, addr)
		p.readUntil(t, deliveryLine)
		require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
		interrupted := time.Now()
		out, status := p.end(t)
		require.Equal(t, 130, status, out)
		require.Less(t, time.Since(interrupted), 5*time.Second)
		require.Regexp(t, `(?m)^\d deliveries, .*early: 0`, out)
		require.Regexp(t, `(?m)^Interrupted\.$`, out)
		requireRemoved(t, addr, out)
	})
}

func TestServerThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	p := start(t, build(t), "127.0.0.1:1")
	out, status := p.end(t)
	require.Equal(t, 1, status, out)
	require.Contains(t, p.stderr.String(), "reach Redis at 127.0.0.1:1")
}

// deliveryLine is due time, lateness, order, timeout, delivery.
var deliveryLine = regexp.MustCompile(`(?m)^(\d\d:\d\d:\d\d\.\d{3}) +\d+\.\d ms late  (A-\d)    [\d.ms]+ +\d$`)

// onBoth runs a test on the embedded and on the real server, whose address it passes on.
func onBoth(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, "")
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, redistest.Addr(t))
	})
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "quickstart")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// process is a run of the program.
type process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	read   strings.Builder // of stdout
	stderr bytes.Buffer
}

func start(t *testing.T, program, addr string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	p := &process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.Env = append(os.Environ(), "REDIS_ADDR="+addr)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.stdout = bufio.NewReader(stdout)
	require.NoError(t, p.cmd.Start())
	return p
}

// readUntil reads what the program prints, until a line matches.
func (p *process) readUntil(t *testing.T, want *regexp.Regexp) {
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

// end waits for the end of the program, and returns all that it printed to stdout.
func (p *process) end(t *testing.T) (stdout string, status int) {
	t.Helper()
	_, err := io.Copy(&p.read, p.stdout)
	require.NoError(t, err)
	err = p.cmd.Wait()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return p.read.String(), p.cmd.ProcessState.ExitCode()
}

// requireRemoved checks that a run on a real server left nothing there.
func requireRemoved(t *testing.T, addr, out string) {
	t.Helper()
	if addr == "" {
		return
	}
	topic := regexp.MustCompile(`topic (\S+),`).FindStringSubmatch(out)
	require.Len(t, topic, 2, out)
	client := redistest.Client(t)
	require.False(t, client.SIsMember(context.Background(), keyPrefix+":topics", topic[1]).Val())
	left := client.Scan(context.Background(), 0, keyPrefix+":{"+topic[1]+"}:*", 1000).Iterator()
	for left.Next(context.Background()) {
		t.Errorf("%s is left", left.Val())
	}
	require.NoError(t, left.Err())
}
