// Package rabbitmqtest starts RabbitMQ servers for tests.
package rabbitmqtest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// startTimeout is the maximum time for a server to answer after its start. One that ends meanwhile
// is started again, up to so many times: another program may have taken a port of it.
const (
	startTimeout = 2 * time.Minute
	starts       = 4
)

// Server is a RabbitMQ server for one test, with separate directory, ports and port mapper. It ends
// with the test, even if the test crashes. Its methods fail the test with t.Fatal, so call them in
// the test's goroutine.
type Server struct {
	t        testing.TB
	bin, dir string
	port     int
	mapper   int // port of epmd
	peers    int // port that no other server uses
	kill     func()
	ended    <-chan struct{} // closed when the process is gone
}

// Start starts a server, with lines added to its configuration, and returns when it answers. If
// RabbitMQ is not installed, the test is skipped, or fails with REDISTEST_REQUIRED=1.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	s := &Server{t: t, bin: bin(t)}
	for range starts {
		s.dir, s.port, s.mapper, s.peers = t.TempDir(), redistest.FreePort(), redistest.FreePort(), redistest.FreePort()
		text := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\n", s.port)
		for _, line := range config {
			text += line + "\n"
		}
		s.write("rabbitmq.conf", text)
		s.write("enabled_plugins", "[].\n")
		// Without this epmd, the server would start one that outlives it.
		startBound(t, nil, "epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(s.mapper))
		if s.up() {
			return s
		}
	}
	t.Fatalf("rabbitmqtest: RabbitMQ does not start: %s", s.log())
	return nil
}

// bin returns the path of the server binary. The command on the PATH is a wrapper that changes the
// user.
func bin(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
	if len(found) == 0 {
		const missing = "no RabbitMQ: install rabbitmq-server"
		if os.Getenv("REDISTEST_REQUIRED") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing + ": LEFT OUT")
	}
	return found[len(found)-1]
}

// URL returns the server's URL with user and password.
func (s *Server) URL() string { return "amqp://guest:guest@" + s.Addr() + "/" }

// Addr returns the server's host:port, which stays the same after restarts.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Kill kills the server with SIGKILL. It stays down until Restart.
func (s *Server) Kill() { s.kill() }

// Restart starts the server again, killing it first if it runs, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	for range starts {
		s.kill()
		if s.up() {
			return
		}
	}
	s.t.Fatalf("rabbitmqtest: RabbitMQ does not start again: %s", s.log())
}

// up starts the server, and returns true when it answers, or false if it has ended before.
func (s *Server) up() bool {
	s.t.Helper()
	s.kill, s.ended = startBound(s.t, []string{
		"HOME=" + s.dir, "RABBITMQ_NODENAME=test@localhost",
		fmt.Sprint("ERL_EPMD_PORT=", s.mapper), fmt.Sprint("RABBITMQ_DIST_PORT=", s.peers),
		"RABBITMQ_MNESIA_BASE=" + s.path("mnesia"), "RABBITMQ_LOG_BASE=" + s.path("log"), "RABBITMQ_PID_FILE=" + s.path("pid"),
		"RABBITMQ_LOGS=" + s.path("log/server.log"), // else it takes a variable LOGS
		"RABBITMQ_CONFIG_FILE=" + s.path("rabbitmq.conf"), "RABBITMQ_ADVANCED_CONFIG_FILE=" + s.path("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + s.path("rabbitmq-env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + s.path("enabled_plugins"),
	}, s.bin)
	timeout := time.After(startTimeout)
	for !s.answers() {
		select {
		case <-s.ended:
			return false
		case <-timeout:
			s.kill()
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

// log returns the end of what the server has logged, and the begin of its crash dump.
func (s *Server) log() string {
	var all []byte
	files, _ := filepath.Glob(s.path("log/*"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if strings.HasSuffix(file, ".dump") {
			text = text[:min(1000, len(text))]
		}
		all = append(all, text[max(0, len(text)-2000):]...)
	}
	return string(all)
}

// answers returns whether the server accepts clients, which it shows by starting the protocol.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return false
	}
	method := make([]byte, 1)
	_, err = io.ReadFull(conn, method)
	return err == nil && method[0] == 1
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// startBound starts a command in a new process group. A shell kills the group when kill is called,
// and when the test or the test binary ends, even by a crash. ended is closed when the command has
// ended.
func startBound(t testing.TB, env []string, name string, args ...string) (kill func(), ended <-chan struct{}) {
	t.Helper()
	leash := exec.Command("sh", append([]string{"-c", `
		trap "" HUP INT QUIT TERM
		exec 3<&0
		setsid "$0" "$@" </dev/null >/dev/null 2>&1 3<&- &
		child=$!
		{ read _ <&3; kill -s KILL -- "-$child"; } &
		wait "$child"`, name}, args...)...)
	leash.Env = append(os.Environ(), env...)
	stdin, err := leash.StdinPipe()
	if err == nil {
		err = leash.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = leash.Wait()
		close(done)
	}()
	kill = sync.OnceFunc(func() {
		_ = stdin.Close()
		<-done
	})
	t.Cleanup(kill)
	return kill, done
}
