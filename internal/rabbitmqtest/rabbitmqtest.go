// Package rabbitmqtest gives tests a RabbitMQ server of their own.
package rabbitmqtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// startTimeout bounds how long a server may take to answer.
const startTimeout = 3 * time.Minute

// Server is a RabbitMQ server with a directory, ports and a port mapper of its own. It ends with its test, however
// that ends. Its methods are for the test's goroutine: they fail the test by t.Fatal.
type Server struct {
	t        testing.TB
	bin, dir string
	port     int
	mapper   int // port of epmd
	peers    int // port that no other server uses
	kill     func()
}

// Start starts a server, with lines added to its configuration, and returns when it answers. Without RabbitMQ the test
// is skipped, or fails where nothing may be left out (REDISTEST_REQUIRED=1).
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	s := &Server{t: t, bin: bin(t), dir: t.TempDir(), port: freePort(t), mapper: freePort(t), peers: freePort(t)}
	text := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\n", s.port)
	for _, line := range config {
		text += line + "\n"
	}
	s.write("rabbitmq.conf", text)
	s.write("enabled_plugins", "[].\n")
	// Else the server starts one that outlives it.
	startLeashed(t, nil, "epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(s.mapper))
	s.up()
	return s
}

// bin is the server itself: the one on the PATH changes to a user of its own.
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

// URL is the server's, with its user and password.
func (s *Server) URL() string { return "amqp://guest:guest@" + s.Addr() + "/" }

// Addr is the server's host:port, the same after every restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Kill ends the server by SIGKILL. It stays down until Restart.
func (s *Server) Kill() { s.kill() }

// Restart starts the server again, killing it first if it runs, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.kill()
	s.up()
}

func (s *Server) up() {
	s.t.Helper()
	s.kill = startLeashed(s.t, []string{
		"HOME=" + s.dir, "RABBITMQ_NODENAME=test@localhost",
		fmt.Sprint("ERL_EPMD_PORT=", s.mapper), fmt.Sprint("RABBITMQ_DIST_PORT=", s.peers),
		"RABBITMQ_MNESIA_BASE=" + s.path("mnesia"), "RABBITMQ_LOG_BASE=" + s.path("log"), "RABBITMQ_PID_FILE=" + s.path("pid"),
		"RABBITMQ_CONFIG_FILE=" + s.path("rabbitmq.conf"), "RABBITMQ_ADVANCED_CONFIG_FILE=" + s.path("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + s.path("rabbitmq-env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + s.path("enabled_plugins"),
	}, s.bin)
	for deadline := time.Now().Add(startTimeout); !s.answers(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("rabbitmqtest: RabbitMQ does not start")
		}
	}
}

// answers tells whether the server begins the talk, as it does when it lets users in.
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

// startLeashed starts a command in a process group of its own. A shell kills that when it is told to, or when the test
// ends, or the test binary, however that ends.
func startLeashed(t testing.TB, env []string, name string, args ...string) (kill func()) {
	t.Helper()
	leash := exec.Command("sh", append([]string{"-c", `
		trap "" HUP INT QUIT TERM
		setsid "$0" "$@" </dev/null >/dev/null 2>&1 &
		read _
		kill -s KILL -- "-$!"
		wait`, name}, args...)...)
	leash.Env = append(os.Environ(), env...)
	stdin, err := leash.StdinPipe()
	if err == nil {
		err = leash.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = leash.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// freePort is below the ports that systems hand out by themselves.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
