package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startTimeout is the maximum time for a server to answer PING after its
// start, including the time to load its data.
const startTimeout = 30 * time.Second

var errEnded = errors.New("ended before it was ready")

// Instance is a real redis-server for one test. It ends with the test, and with
// the test binary even if that crashes. Its methods fail the test with t.Fatal,
// so call them in the test's goroutine.
type Instance struct {
	t    testing.TB
	bin  string
	dir  string // holds data, log and socket
	port int
	env  []string
	args []string

	prepare  func(*Instance) // is called before the first start; nil: nothing to do
	withDisk bool            // the server records confirmed writes
	config   string          // content of the configuration file; "": no file

	mu   sync.Mutex
	proc *process // nil while the server is down on purpose
	cuts int
	wg   sync.WaitGroup
}

// process is one run of the server.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a server without persistence, and returns when it answers PING.
// args are added to its command line, such as "--appendonly", "yes".
func Start(t testing.TB, args ...string) *Instance {
	t.Helper()
	return (&Instance{t: t, args: args}).start(FreePort)
}

func (in *Instance) start(pickPort func() int) *Instance {
	t := in.t
	t.Helper()
	in.bin = serverBin()
	if in.bin == "" {
		missing(t, "no redis-server: install one, or set REDIS_SERVER_BIN")
	}
	in.dir = boundDir(t)
	t.Cleanup(in.stop)
	if in.prepare != nil {
		in.prepare(in)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	var err error
	if in.config != "" {
		// The server may rewrite the file.
		err = os.WriteFile(in.path("config"), []byte(in.config+"\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		in.port = pickPort()
		if err = in.up(true); err == nil {
			return in
		}
		if !errors.Is(err, errEnded) {
			break
		} // otherwise another process may have taken the port
	}
	t.Fatal(err)
	return nil
}

// Addr returns the server's host:port, which stays the same after restarts.
func (in *Instance) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(in.port))
}

// Port returns the port of Addr.
func (in *Instance) Port() string { return strconv.Itoa(in.port) }

// Client returns a new client of the server, closed when t ends.
func (in *Instance) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return newClient(t, in.Addr(), 0)
}

// Kill kills the server with SIGKILL. It stays down until Restart.
func (in *Instance) Kill() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.down()
}

// Shutdown ends the server with SHUTDOWN, after it has saved its data. It stays down until Restart.
func (in *Instance) Shutdown() {
	in.t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	p := in.proc
	if p == nil {
		in.t.Fatal("redistest: SHUTDOWN for a server that is down")
	}
	in.proc = nil
	if _, err := send(in.path("sock"), "SHUTDOWN SAVE"); err != nil {
		_ = p.cmd.Process.Kill()
	}
	<-p.exited
}

// Restart starts the server again with the same address, arguments and data directory, and returns
// when it answers PING. A running server is killed first. If its append-only file was cut off, it
// has written a new one by then, as docs/reliability.md recommends.
func (in *Instance) Restart() {
	in.t.Helper()
	in.restart(true)
}

// RestartAsIs restarts the server without rewriting a cut append-only file.
func (in *Instance) RestartAsIs() {
	in.t.Helper()
	in.restart(false)
}

func (in *Instance) restart(rewrite bool) {
	in.t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.down()
	if err := in.up(rewrite); err != nil {
		in.t.Fatal(err)
	}
}

// Cuts returns how often the server found its append-only file cut off and wrote a new one.
func (in *Instance) Cuts() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.cuts
}

// rewriteLog makes the server write a new append-only file if its own was cut off. It returns when
// the server would start with the new one. The caller holds mu.
func (in *Instance) rewriteLog() error {
	said, err := os.ReadFile(in.path("log"))
	if err != nil || !strings.Contains(string(said), "Truncating the AOF") {
		return err
	}
	in.cuts++
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: in.path("sock"),
		ReadTimeout: startTimeout, MaxRetries: -1, // the disk may be busy, and a second request is an error
	})
	defer client.Close()
	if err := client.BgRewriteAOF(ctx).Err(); err != nil {
		return err
	}
	var info map[string]string
	ended := comes(func() bool {
		sections, said := client.InfoMap(ctx, "persistence").Result()
		info, err = sections["Persistence"], said
		return err != nil || info["aof_rewrite_scheduled"] == "0" && info["aof_rewrite_in_progress"] == "0"
	})
	switch status := info["aof_last_bgrewrite_status"]; {
	case err != nil:
		return err
	case !ended:
		return fmt.Errorf("it is not done after %v", startTimeout)
	case status != "ok":
		return fmt.Errorf("it ended with %q", status)
	}
	return nil
}

// Pause stops the server with SIGSTOP: connections stay open, but nothing answers.
func (in *Instance) Pause() {
	in.t.Helper()
	AwaitFrozen(in.t, in.signal("STOP"))
}

// Resume ends Pause.
func (in *Instance) Resume() { in.t.Helper(); in.signal("CONT") }

// RestartCommand returns a command line that kills the server with SIGKILL and
// ends when it runs again, as after Restart. It is for tests that restart a
// server by running a command. Several may run at the same time. The test must
// still be running, because the Instance starts the killed server again.
func (in *Instance) RestartCommand() []string {
	const script = `
		was=$(cat "$0/ready") && kill -9 "$was" 2>/dev/null
		tries=0
		until now=$(cat "$0/ready" 2>/dev/null) && [ "$now" != "$was" ]; do
			tries=$((tries + 1))
			[ "$tries" -lt 1300 ] || { echo "redis-server did not come back" >&2; exit 1; }
			sleep 0.05
		done`
	return []string{"sh", "-c", script, in.dir}
}

// signal sends a signal with the shell, because syscall has no SIGSTOP on
// Windows, where this package must still compile. It returns the server's process number.
func (in *Instance) signal(name string) (pid int) {
	in.t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.proc == nil {
		in.t.Fatalf("redistest: SIG%s for a server that is down", name)
	}
	pid = in.proc.cmd.Process.Pid
	if out, err := exec.Command("sh", "-c", `kill -s "$0" "$1"`, name, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		in.t.Fatalf("redistest: SIG%s: %v %s", name, err, out)
	}
	return pid
}

func (in *Instance) stop() {
	in.Kill()
	in.wg.Wait()
}

// down kills the server, if it runs, and waits for its end. The caller holds mu.
func (in *Instance) down() {
	if p := in.proc; p != nil {
		in.proc = nil
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// up starts the server and waits until it answers PING. With rewrite it also waits for a new
// append-only file if the old one was cut. The caller holds mu.
func (in *Instance) up(rewrite bool) error {
	log, err := os.Create(in.path("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	var args []string
	if in.config != "" {
		args = []string{in.path("config")}
	}
	cmd := exec.Command(in.bin, slices.Concat(args, []string{
		"--port", strconv.Itoa(in.port), "--bind", "127.0.0.1", "--unixsocket", in.path("sock"),
		"--dir", in.dir, "--save", "", "--appendonly", "no",
	}, in.args)...)
	cmd.Env = append(os.Environ(), in.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	in.proc = p
	in.wg.Go(func() { in.watch(p) })
	if err := in.write("pid", cmd.Process.Pid); err != nil {
		in.down()
		return err
	}
	if err := in.awaitPong(p); err != nil {
		in.down()
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("redistest: %s: %w; it said:\n%s", cmd, err, said)
	}
	if rewrite {
		if err := in.rewriteLog(); err != nil {
			in.down()
			return fmt.Errorf("redistest: %s: a new append-only file: %w", cmd, err)
		}
	}
	return in.write("ready", cmd.Process.Pid)
}

// watch waits for the end of a run. If the run was ended with SIGKILL, but not
// by down, then RestartCommand ended it, and watch starts the server again.
func (in *Instance) watch(p *process) {
	err := p.cmd.Wait()
	_ = os.Remove(in.path("ready"))
	_ = os.Remove(in.path("pid")) // the process ID may be reused
	close(p.exited)

	in.mu.Lock()
	defer in.mu.Unlock()
	if in.proc != p {
		return // by down
	}
	in.proc = nil
	if err == nil || err.Error() != "signal: killed" {
		in.t.Errorf("redistest: redis-server ended by itself: %v", err)
		return
	}
	if err := in.up(true); err != nil {
		in.t.Error(err)
	}
}

// awaitPong pings through the socket in the server's own directory, where no
// other server can answer. The server opens it after its port.
func (in *Instance) awaitPong(p *process) error {
	for deadline := time.Now().Add(startTimeout); ; {
		answer, err := send(in.path("sock"), "PING")
		if answer == "+PONG" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %v: %s (%v)", startTimeout, answer, err)
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%w: %v", errEnded, p.cmd.ProcessState)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// send returns the first line of a server's answer, or nothing if it closes the connection instead.
func send(socket, command string) (string, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(startTimeout))
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", err
	}
	return strings.TrimSpace(line), nil
}

func (in *Instance) path(name string) string { return filepath.Join(in.dir, name) }

// write replaces a file atomically, so that a shell never reads a part of it.
func (in *Instance) write(name string, pid int) error {
	if err := os.WriteFile(in.path("new"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		return err
	}
	return os.Rename(in.path("new"), in.path(name))
}

// boundDir creates a directory that is removed when this process ends. A shell waits for the end of
// its standard input, which also comes when the test binary panics or is killed. Then it kills the
// server whose process ID is in the file "pid", and removes the directory.
func boundDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		t.Fatal(err)
	}
	leash := exec.Command("sh", "-c", `
		trap "" HUP INT QUIT TERM
		read _
		pid=$(cat "$0/pid" 2>/dev/null) && kill -9 "$pid"
		rm -rf "$0"`, dir)
	hold, err := leash.StdinPipe()
	if err == nil {
		err = leash.Start()
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = hold.Close()
		_ = leash.Wait()
	})
	return dir
}

// FreePort returns a free port below the range from which systems assign ports. Otherwise a client
// that redials a killed server could get the server's port for its own end.
func FreePort() int {
	for {
		port := 20000 + rand.IntN(12000)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
}
