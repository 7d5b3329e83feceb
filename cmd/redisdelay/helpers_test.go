package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for an expected event.
const patience = 60 * time.Second

// says runs the program in this process, and returns its exit status and output. Its context has
// ended before it begins.
func says(environment []string, args ...string) (status int, stdout, stderr string) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	status = run(ended, args, system{environment: environment, stdin: strings.NewReader(""), stdout: &out, stderr: &errs})
	return status, out.String(), errs.String()
}

// file writes a file for the test, and returns its name.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// asProgram is an environment variable that makes the test binary act as the program.
const asProgram = "RUN_AS_REDISDELAY"

// tool is the program in a separate process.
type tool struct {
	t      *testing.T
	cmd    *exec.Cmd
	ended  chan struct{}
	err    error // after ended
	mu     sync.Mutex
	logged bytes.Buffer
	news   chan struct{}
}

// start starts this test binary as the program, until the end of the test at the latest. With the
// race detector its exit would take a second longer, in which no goroutine is left to watch.
func start(t *testing.T, environment []string, args ...string) *tool {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	return startProgram(t, binary, slices.Concat(environment, []string{asProgram + "=1", "GORACE=atexit_sleep_ms=0"}), args...)
}

func startProgram(t *testing.T, program string, environment []string, args ...string) *tool {
	t.Helper()
	p := &tool{t: t, cmd: exec.Command(program, args...), ended: make(chan struct{}), news: make(chan struct{}, 1)}
	p.cmd.Env = environment
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, environmentPrefix) {
			p.cmd.Env = append(p.cmd.Env, line)
		}
	}
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			p.logged.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
			select {
			case p.news <- struct{}{}:
			default:
			}
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("it said:\n%s", p.said())
		}
	})
	return p
}

func (p *tool) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logged.String()
}

// await waits until the log matches the pattern, and returns the first group of the match.
func (p *tool) await(pattern string) string {
	p.t.Helper()
	timeout, compiled := time.After(patience), regexp.MustCompile(pattern)
	for {
		if found := compiled.FindStringSubmatch(p.said()); found != nil {
			return found[len(found)-1]
		}
		select {
		case <-p.news:
		case <-p.ended:
			if !compiled.MatchString(p.said()) {
				require.FailNow(p.t, "it ended", "without saying %s", pattern)
			}
		case <-timeout:
			require.FailNow(p.t, "it does not say "+pattern)
		}
	}
}

func (p *tool) signal() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
}

// wait waits for the program's end, and returns its exit status, -1 after a signal.
func (p *tool) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.FailNow(p.t, "it does not end")
	}
	var failed *exec.ExitError
	if p.err != nil && !errors.As(p.err, &failed) {
		require.NoError(p.t, p.err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop stops the program, and checks that it ends cleanly.
func (p *tool) stop() {
	p.t.Helper()
	p.signal()
	require.Zero(p.t, p.wait())
}

// probe returns the answer of the health endpoint.
func (p *tool) probe(path string) (status int, said string) {
	p.t.Helper()
	return probe(p.t, p.await(`msg="Answering probes" address=(\S+)`), path)
}

func probe(t *testing.T, address, path string) (status int, said string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	answer, err := client.Get("http://" + address + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, strings.TrimSpace(string(text))
}

// awaitProbe waits until a probe has this status, and returns its text.
func (p *tool) awaitProbe(path string, status int) (said string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		var got int
		got, said = p.probe(path)
		return got == status
	}, patience, 10*time.Millisecond)
	return said
}

// awaitUnready waits until the program is not ready for a reason. On a slow machine its first
// answers may tell of a time limit.
func (p *tool) awaitUnready(reason string) {
	p.t.Helper()
	said := ""
	if !assert.Eventually(p.t, func() bool {
		var status int
		status, said = p.probe("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(said, reason)
	}, patience, 10*time.Millisecond) {
		require.Contains(p.t, said, reason)
	}
}

// freePort returns an unused port of this machine.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port
}

// listens returns the port of an address as a number.
func listens(t *testing.T, port string) int {
	t.Helper()
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	return number
}

// silent is a server that accepts connections and never answers. It reports each connection with a
// request.
func silent(t *testing.T) (address string, asked <-chan struct{}) {
	t.Helper()
	told := make(chan struct{}, 1000)
	return serving(t, func(connection net.Conn) {
		if n, _ := connection.Read(make([]byte, 1)); n > 0 {
			told <- struct{}{}
		}
	}), told
}

// serving is a server that calls a function with each connection, and then reads until the client
// or the test ends it. A client of go-redis does not close a connection whose greeting failed.
func serving(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer context.AfterFunc(t.Context(), func() { _ = connection.Close() })()
				defer connection.Close()
				serve(connection)
				_, _ = io.Copy(io.Discard, connection)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		connections.Wait()
	})
	return listener.Addr().String()
}
