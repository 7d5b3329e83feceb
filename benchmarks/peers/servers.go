package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// serverKind is a server that systems run on.
type serverKind struct {
	name string
	how  string // how it is set up, for the report

	// find returns the binary, or an error if it is not installed.
	find func(b *bench) (string, error)

	// version is the argument that makes the binary print its version.
	version []string

	// launch starts it on a port, with its data in a directory, and returns.
	launch func(bin, dir string, port int) (*server, error)

	// greeting returns whether the server accepts clients.
	greeting func(bin, addr string) bool
}

// server is one that runs.
type server struct {
	addr    string
	dir     string // its data
	root    int    // process of which its processes descend
	base    int64  // shared memory of the machine before the start
	leashes []*leash
	end     func() // before the processes are killed; nil: nothing
}

// start starts a server on a new directory, and returns when it accepts clients.
func (k serverKind) start(ctx context.Context, b *bench) (*server, error) {
	bin, err := k.find(b)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "data")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	base, err := sharedMemory()
	if err != nil {
		return nil, err
	}
	s, err := k.launch(bin, dir, port)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", k.name, err)
	}
	s.dir, s.base, s.addr = dir, base, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for deadline := time.Now().Add(time.Minute); !k.greeting(bin, s.addr); {
		if time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("%s does not start", k.name)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

func (s *server) stop() {
	if s.end != nil {
		s.end()
	}
	for _, l := range s.leashes {
		l.kill()
	}
	_ = os.RemoveAll(s.dir)
}

// memory is how much memory the server has.
func (s *server) memory() (int64, error) {
	own, err := memoryOf(s.root)
	if err != nil {
		return 0, err
	}
	shared, err := sharedMemory()
	return own + shared - s.base, err
}

var redisServer = serverKind{
	name: "Redis",
	how:  "`appendonly yes`, `appendfsync everysec`",
	find: func(*bench) (string, error) {
		bin, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER_BIN"), "redis-server"))
		if err != nil {
			return "", fmt.Errorf("%w: %w", errMissing, err)
		}
		return bin, nil
	},
	version: []string{"--version"},
	launch: func(bin, dir string, port int) (*server, error) {
		return launched(nil, bin, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
			"--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
	},
	greeting: func(_, addr string) bool { return greets(addr, "PING\r\n", "+PONG") },
}

var natsServer = serverKind{
	name: "nats-server",
	how:  "streams on disk, which is synced every two minutes, the default",
	find: func(b *bench) (string, error) {
		return b.build("github.com/nats-io/nats-server/v2", "nats-server")
	},
	version: []string{"--version"},
	launch: func(bin, dir string, port int) (*server, error) {
		return launched(nil, bin, "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js", "-sd", dir)
	},
	greeting: func(_, addr string) bool { return greets(addr, "", "INFO") },
}

var postgresServer = serverKind{
	name: "PostgreSQL",
	how:  "`synchronous_commit off`, `shared_buffers` 1 GB, `max_wal_size` 4 GB",
	find: func(*bench) (string, error) {
		return installed("/usr/lib/postgresql/15/bin/postgres", "PostgreSQL 15")
	},
	version: []string{"--version"},
	launch: func(bin, dir string, port int) (*server, error) {
		as, err := asPostgres(dir)
		if err != nil {
			return nil, err
		}
		bins := filepath.Dir(bin)
		data := filepath.Join(dir, "data")
		initialize := slices.Concat(as, []string{filepath.Join(bins, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale", "C"})
		if out, err := exec.Command(initialize[0], initialize[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("initdb: %w\n%s", err, out)
		}
		s, err := launched(nil, slices.Concat(as, []string{bin, "-D", data, "-c", "listen_addresses=127.0.0.1", "-c", "port=" + strconv.Itoa(port),
			"-c", "unix_socket_directories=" + dir, "-c", "max_connections=200",
			"-c", "synchronous_commit=off", "-c", "shared_buffers=1GB", "-c", "max_wal_size=4GB"})...)
		if err != nil {
			return nil, err
		}
		s.end = func() { // a killed server would leave shared memory behind
			stop := slices.Concat(as, []string{filepath.Join(bins, "pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop"})
			_ = exec.Command(stop[0], stop[1:]...).Run()
		}
		return s, nil
	},
	greeting: func(bin, addr string) bool {
		host, port, _ := net.SplitHostPort(addr)
		return exec.Command(filepath.Join(filepath.Dir(bin), "pg_isready"), "-q", "-h", host, "-p", port).Run() == nil
	},
}

// asPostgres is the start of a command line that runs the rest as the user postgres, because
// PostgreSQL refuses to run as root. It gives that user the directory.
func asPostgres(dir string) ([]string, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	return []string{"setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups"}, os.Chown(dir, uid, gid)
}

var rabbitServer = serverKind{
	name: "RabbitMQ",
	how:  "defaults",
	find: func(*bench) (string, error) {
		return installed("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server", "RabbitMQ")
	},
	launch: func(bin, dir string, port int) (*server, error) {
		mapper, err := freePort()
		if err != nil {
			return nil, err
		}
		peers, err := freePort()
		if err != nil {
			return nil, err
		}
		config := filepath.Join(dir, "rabbitmq.conf")
		if err := os.WriteFile(config, fmt.Appendf(nil, "listeners.tcp.1 = 127.0.0.1:%d\n", port), 0o600); err != nil {
			return nil, err
		}
		// Without this epmd, the server would start one that outlives it.
		epmd, err := newLeash(nil, "epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(mapper))
		if err != nil {
			return nil, err
		}
		s, err := launched([]string{
			"HOME=" + dir, "RABBITMQ_NODENAME=peers@localhost",
			fmt.Sprint("ERL_EPMD_PORT=", mapper), fmt.Sprint("RABBITMQ_DIST_PORT=", peers),
			"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"), "RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"),
			"RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"), "RABBITMQ_CONFIG_FILE=" + config,
			"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "enabled_plugins"),
		}, bin)
		if err != nil {
			epmd.kill()
			return nil, err
		}
		s.leashes = append(s.leashes, epmd)
		return s, nil
	},
	greeting: func(_, addr string) bool { return greets(addr, "AMQP\x00\x00\x09\x01", "\x01") },
}

// installed returns the last file that matches.
func installed(pattern, what string) (string, error) {
	found, _ := filepath.Glob(pattern)
	if len(found) == 0 {
		return "", fmt.Errorf("%w: no %s at %s", errMissing, what, pattern)
	}
	return found[len(found)-1], nil
}

var errMissing = errors.New("not installed")

// versionOf is the version of a server, in the words of its binary or by its path.
func (k serverKind) versionOf(b *bench) (string, error) {
	bin, err := k.find(b)
	if err != nil {
		return "", err
	}
	text := bin // RabbitMQ's is in its path
	if k.version != nil {
		out, err := exec.Command(bin, k.version...).Output()
		if err != nil {
			return "", err
		}
		text = string(out)
	}
	return k.name + " " + versionNumber.FindString(text), nil
}

// greets tells whether a server answers what is sent to it with a text that begins so.
func greets(addr, send, want string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(send)); err != nil {
		return false
	}
	got := make([]byte, len(want))
	_, err = io.ReadFull(bufio.NewReader(conn), got)
	return err == nil && string(got) == want
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

func launched(env []string, command ...string) (*server, error) {
	l, err := newLeash(env, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	return &server{root: l.cmd.Process.Pid, leashes: []*leash{l}}, nil
}

// leash is a command in a process group of its own, which a shell kills when kill is called and
// when this process ends, even by a crash.
type leash struct {
	cmd  *exec.Cmd
	hold io.Closer
}

func newLeash(env []string, name string, args ...string) (*leash, error) {
	cmd := exec.Command("sh", append([]string{"-c", `
		trap "" HUP INT QUIT TERM
		setsid "$0" "$@" </dev/null >/dev/null 2>&1 &
		read _
		kill -s KILL -- "-$!"
		wait`, name}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &leash{cmd, hold}, cmd.Start()
}

func (l *leash) kill() {
	_ = l.hold.Close()
	_ = l.cmd.Wait()
}

// sleep returns an error if the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// module returns a function that returns the name and version of a Go module in go.mod.
func module(name string) func() (string, error) {
	return func() (string, error) {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", name).Output()
		return path.Base(strings.TrimSuffix(name, "/v4")) + " " + string(bytes.TrimSpace(out)), err
	}
}

// npmPackage returns a function that returns the name and version of a package in
// bullmq/package.json.
func npmPackage(name string) func() (string, error) {
	return func() (string, error) {
		text, err := os.ReadFile("bullmq/package.json")
		_, rest, _ := strings.Cut(string(text), `"`+name+`":`)
		return name + " v" + versionNumber.FindString(rest), err
	}
}
