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

// startTimeout bounds how long a server may take to answer PING, loading its
// data included.
const startTimeout = 30 * time.Second

var errEnded = errors.New("ended before it was ready")

// Instance is a real redis-server that belongs to one test. It ends with the
// test, and with the test binary however that ends. Its methods are for the
// test's goroutine: they fail the test by t.Fatal.
type Instance struct {
	t    testing.TB
	bin  string
	dir  string // holds data, log and socket
	port int
	env  []string
	args []string

	withClock, withDisk, withLocale bool

	config string // what the server is to find in its configuration file; "": it has none

	mu   sync.Mutex
	proc *process // nil: shall be down
	cuts int
	wg   sync.WaitGroup
}

// process is one run of the server.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a server without persistence, with args added to its command
// line, such as "--appendonly", "yes", and returns when it answers PING.
func Start(t testing.TB, args ...string) *Instance {
	t.Helper()
	return (&Instance{t: t, args: args}).start(freePort)
}

func (in *Instance) start(pickPort func() int) *Instance {
	t := in.t
	t.Helper()
	in.bin = serverBin()
	if in.bin == "" {
		missing(t, "no redis-server: install one, or set REDIS_SERVER_BIN")
	}
	in.dir = leashedDir(t)
	t.Cleanup(in.stop)
	if in.withClock {
		in.fakeClock()
	}
	if in.withDisk {
		in.noteDisk()
	}
	if in.withLocale {
		in.env = append(in.env, in.preload("locale", collateSource))
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	var err error
	if in.config != "" {
		// The server may rewrite it.
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
		} // else the port may have been taken since it was picked
	}
	t.Fatal(err)
	return nil
}

// Addr is the server's host:port, the same after every restart.
func (in *Instance) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(in.port))
}

// Port is that of Addr.
func (in *Instance) Port() string { return strconv.Itoa(in.port) }

// Client is a new client of the server, closed when t ends.
func (in *Instance) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return newClient(t, in.Addr(), 0)
}

// Kill ends the server by SIGKILL. It stays down until Restart.
func (in *Instance) Kill() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.down()
}

// Shutdown ends the server as an operator does: it saves its data first. It stays down until Restart.
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

// Restart starts the server again with the same address, arguments and data
// directory, killing it first if it runs, and returns when it answers PING. If
// it found its append-only file cut off, it has written a new one by then, as
// docs/reliability.md tells operators to.
func (in *Instance) Restart() {
	in.t.Helper()
	in.restart(true)
}

// RestartAsIs is Restart, and leaves the server with the file that it has.
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

// Cuts is how often the server found its append-only file cut off, and wrote a new one.
func (in *Instance) Cuts() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.cuts
}

// rewriteLog has the server write a new append-only file if it found its own cut off, and returns when that is the one
// it would begin with. The caller holds mu.
func (in *Instance) rewriteLog() error {
	said, err := os.ReadFile(in.path("log"))
	if err != nil || !strings.Contains(string(said), "Truncating the AOF") {
		return err
	}
	in.cuts++
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: in.path("sock"),
		ReadTimeout: startTimeout, MaxRetries: -1, // for a disk that is busy; to ask twice is an error
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

// Pause freezes the server by SIGSTOP: connections stay open, nothing answers.
func (in *Instance) Pause() { in.t.Helper(); in.signal("STOP") }

// Resume ends Pause.
func (in *Instance) Resume() { in.t.Helper(); in.signal("CONT") }

// RestartCommand is a command line that kills the server by SIGKILL and returns
// when it is back, as after Restart; for tests that restart it by running a command.
// Several may run at the same time. The test must still be running, because
// it is the Instance that starts the killed server again.
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

// signal goes by way of the shell because syscall has no SIGSTOP on Windows,
// where this package must still compile.
func (in *Instance) signal(name string) {
	in.t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.proc == nil {
		in.t.Fatalf("redistest: SIG%s for a server that is down", name)
	}
	pid := strconv.Itoa(in.proc.cmd.Process.Pid)
	if out, err := exec.Command("sh", "-c", `kill -s "$0" "$1"`, name, pid).CombinedOutput(); err != nil {
		in.t.Fatalf("redistest: SIG%s: %v %s", name, err, out)
	}
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

// up starts the server and waits until it answers PING, and has a new append-only file if it needs one and is to write
// it. The caller holds mu.
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

// watch waits for the end of a run. A run that somebody else ended by SIGKILL
// was ended by RestartCommand, so the server is started again.
func (in *Instance) watch(p *process) {
	err := p.cmd.Wait()
	_ = os.Remove(in.path("ready"))
	_ = os.Remove(in.path("pid")) // a number that others may get now
	close(p.exited)

	in.mu.Lock()
	defer in.mu.Unlock()
	if in.proc != p {
		return // as wished
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

// awaitPong asks through the socket in the server's own directory, where no
// other server can answer in its place. The server opens it after its port.
func (in *Instance) awaitPong(p *process) error {
	answer := "no answer"
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if answer = ping(in.path("sock")); answer == "+PONG" {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%w: %v", errEnded, p.cmd.ProcessState)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("not ready after %v: %s", startTimeout, answer)
}

// ping returns the first line of the server's answer, or why there is none.
func ping(socket string) string {
	answer, err := send(socket, "PING")
	if err != nil {
		return err.Error()
	}
	return answer
}

// send returns the first line of what a server answers; nothing if it ends the connection instead.
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

// write replaces a file whole, so that a shell reading it never sees half of it.
func (in *Instance) write(name string, pid int) error {
	if err := os.WriteFile(in.path("new"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		return err
	}
	return os.Rename(in.path("new"), in.path(name))
}

// leashedDir makes a directory and ties it to this process: a shell waits for
// the end of its standard input, which also comes when the test binary
// panics or is killed, and then kills the server whose number is in the file
// "pid" and removes the directory.
func leashedDir(t testing.TB) string {
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

// freePort picks below the ports that systems hand out by themselves, lest a
// client that redials a killed server gets the server's port for its own end.
func freePort() int {
	for {
		port := 20000 + rand.IntN(12000)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
}
