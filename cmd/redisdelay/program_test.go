package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/term"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// TestProgram builds the program as the container file does, and runs it as a process.
func TestProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary := filepath.Join(dir, "redisdelay")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	for name, test := range map[string]func(*testing.T, string){
		"static":      testProgramIsStatic,
		"recipes":     testRecipes,
		"many topics": testManyTopics,
		"unit":        testUnit,
		"container":   testContainer,
		"confirm":     testConfirmation,
		"top":         testTop,
		"colour":      testColour,
		"interrupted": testInterruptedMove,
		"removal":     testInterruptedRemoval,
		"killed":      testSecondInterrupt,
		"tail":        testInterruptedTail,
		"read only":   testReadOnlyUser,
		"relays":      testProgramRelays,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, binary)
		})
	}
}

// The container file has nothing but the program, so it must not need a library.
func testProgramIsStatic(t *testing.T, binary string) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has such binaries")
	}
	file, err := elf.Open(binary)
	require.NoError(t, err)
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	require.False(t, func() bool {
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP {
				return true
			}
		}
		return false
	}(), "it needs a dynamic loader")
}

// Other tests of relays run this test binary.
func testProgramRelays(t *testing.T, binary string) {
	version, err := exec.Command(binary, "version").Output()
	require.NoError(t, err)
	require.Regexp(t, `^redisdelay \S+, go1`, string(version))

	broker := startStreams(t)
	relaysOverAStop(t, func(t *testing.T, environment []string, args ...string) *tool {
		return startProgram(t, binary, environment, args...)
	}, broker.consume(t, topic), nil, "--to", "redisstream", "--redisstream", broker.Addr())
}

// session is the program in a pseudo terminal.
type session struct {
	t        *testing.T
	terminal *os.File
	cmd      *exec.Cmd
	mu       sync.Mutex
	shown    bytes.Buffer
	ended    chan struct{}
}

// environment returns that of a program that connects to the address, without settings of the test.
func environment(addr string, more ...string) []string {
	env := []string{"REDISDELAY_REDIS=" + addr, "TERM=xterm"}
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, environmentPrefix) && !strings.HasPrefix(line, "NO_COLOR=") && !strings.HasPrefix(line, "HOME=") && !strings.HasPrefix(line, "TERM=") {
			env = append(env, line)
		}
	}
	return append(env, more...)
}

func inTerminal(t *testing.T, env []string, program string, args ...string) *session {
	t.Helper()
	if signal.Ignored(os.Interrupt) { // as in the background of a script, and the program would inherit that
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	s := &session{t: t, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	s.cmd.Env = env
	var err error
	s.terminal, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 24, Cols: 120})
	require.NoError(t, err)
	go func() {
		defer close(s.ended)
		chunk := make([]byte, 4096)
		for {
			n, err := s.terminal.Read(chunk)
			s.mu.Lock()
			s.shown.Write(chunk[:n])
			s.mu.Unlock()
			if err != nil { // the program has closed its side
				break
			}
		}
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.ended
		_ = s.terminal.Close()
	})
	return s
}

func (s *session) screen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// await waits until the terminal has shown the text.
func (s *session) await(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.screen(), text) }, patience, time.Millisecond, "it does not show %q, but\n%s", text, lazy(s.screen))
}

type lazy func() string

func (l lazy) String() string { return l() }

func (s *session) send(keys string) {
	s.t.Helper()
	_, err := s.terminal.WriteString(keys)
	require.NoError(s.t, err)
}

// exit waits for the end of the program, and returns its exit code, -1 after a signal.
func (s *session) exit() int {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		require.FailNow(s.t, "it does not end", s.screen())
		return 0
	}
}

const ctrlC = "\x03"

func testConfirmation(t *testing.T, binary string) {
	w, _ := shop(t, time.Now())
	dead := func() (n int) {
		stats, err := w.admin.Stats(t.Context(), "orders")
		require.NoError(t, err)
		return sums(stats).Dead
	}
	purge := func() *session {
		s := inTerminal(t, environment(w.addr), binary, "dead", "purge", "orders", "--group", "billing")
		s.await(`This will purge 3 dead letters of group "billing" of topic "orders". Go on? [y/N] `)
		return s
	}
	for keys, want := range map[string]string{"n\r": "Nothing was changed.", "\r": "Nothing was changed.", ctrlC: "interrupted: nothing was changed"} {
		s := purge()
		s.send(keys)
		require.Equal(t, exitFailed, s.exit())
		require.Contains(t, s.screen(), want)
		require.Equal(t, 3, dead())
	}
	s := purge()
	s.send("y\r")
	require.Zero(t, s.exit())
	require.Contains(t, s.screen(), "Done: purge 3 dead letters")
	require.Zero(t, dead())

	// Without a terminal there is nobody to ask.
	said, err := withEnv(exec.Command(binary, "groups", "rm", "orders", "audit"), environment(w.addr)).CombinedOutput()
	require.Equal(t, exitRefused, exitCode(err))
	require.Contains(t, string(said), `this would remove the group with 5 messages of group "audit" of topic "orders"; there is no terminal to ask on, so say --yes`)
}

func withEnv(cmd *exec.Cmd, env []string) *exec.Cmd {
	cmd.Env = env
	return cmd
}

func exitCode(err error) int {
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return failed.ExitCode()
	}
	return 0
}

func testTop(t *testing.T, binary string) {
	w, _ := shop(t, time.Now())
	w.publish("evil"+evil, "x", "y", redisdelay.DelayKey, "1h")
	const enter, leave = "\x1b[?1049h", "\x1b[?1049l"
	modes := func(terminal *os.File) *term.State {
		state, err := term.GetState(int(terminal.Fd()))
		require.NoError(t, err)
		return state
	}
	fresh, other, err := pty.Open()
	require.NoError(t, err)
	untouched := modes(fresh)
	require.NoError(t, errors.Join(other.Close(), fresh.Close()))
	for name, end := range map[string]func(*session){
		"q":      func(s *session) { s.send("q") },
		"ctrl-c": func(s *session) { s.send(ctrlC) },
		"signal": func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		s := inTerminal(t, environment(w.addr), binary, "top", "--interval", "100ms")
		s.await("q quits")
		s.await("nobody reads audit")
		require.Contains(t, s.screen(), enter)
		require.NotEqual(t, untouched, modes(s.terminal), "keys come at once")
		end(s)
		require.Zero(t, s.exit(), name)
		require.True(t, strings.HasSuffix(s.screen(), leave), "%s: the screen is as it was: %q", name, s.screen())
		require.Equal(t, untouched, modes(s.terminal), "%s: the modes of the terminal are as they were", name)
		requireOnlyOwnSequences(t, s.screen())
	}
	// Without an answer it says so, and goes on.
	s := inTerminal(t, environment("127.0.0.1:1"), binary, "top", "--interval", "100ms")
	s.await("Cannot read: ")
	s.send("q")
	require.Zero(t, s.exit())
	said, err := withEnv(exec.Command(binary, "top"), environment(w.addr)).CombinedOutput()
	require.Equal(t, exitRefused, exitCode(err))
	require.Contains(t, string(said), "top needs a terminal; --once")
}

// ownSequences are what the program itself says to terminals.
var ownSequences = regexp.MustCompile(`\x1b\[(\?1049[hl]|\?25[hl]|H|J|K|0m|31;1m|33m|32m|2m|1m)|\r\n|\r|\n`)

func requireOnlyOwnSequences(t *testing.T, shown string) {
	t.Helper()
	rest := ownSequences.ReplaceAllString(shown, "")
	require.Equal(t, clean(rest), rest, "the terminal gets characters that control it")
}

func testColour(t *testing.T, binary string) {
	w, _ := shop(t, time.Now())
	w.publish("evil"+evil, "x"+evil, evil, redisdelay.DelayIDKey, "name", redisdelay.DelayKey, "1h")
	for _, args := range [][]string{{"topics"}, {"groups", "ls"}, {"msg", "ls", "evil" + evil}, {"msg", "get", "evil" + evil, "name"}, {"check"}} {
		s := inTerminal(t, environment(w.addr), binary, args...)
		require.LessOrEqual(t, s.exit(), exitFailed)
		requireOnlyOwnSequences(t, s.screen())
		if args[0] != "msg" || args[1] != "get" {
			require.Contains(t, s.screen(), "\x1b[1m", args)
		}
		plain := inTerminal(t, environment(w.addr, "NO_COLOR=1"), binary, args...)
		require.LessOrEqual(t, plain.exit(), exitFailed)
		require.NotContains(t, regexp.MustCompile(`\r\x1b\[K`).ReplaceAllString(plain.screen(), ""), "\x1b", args)
	}
}

// bury makes dead letters.
func (w *world) bury(topic, group string, n int) {
	w.t.Helper()
	stop := w.subscribe(topic, redisdelay.SubscriberConfig{ConsumerGroup: group, MaxInFlight: 200})
	var all []*message.Message
	for i := range n {
		all = append(all, message.NewMessage(fmt.Sprint(i), fmt.Appendf(nil, "die: partner %d answers 503 after %dms", i%17, 1000+i)))
	}
	require.NoError(w.t, w.publisher.Publish(topic, all...))
	w.await(topic, group, func(g admin.GroupStats) bool { return g.Dead == n })
	stop()
}

// slow is a proxy of a server, whose answers take some time once it is told to be slow.
type slow struct {
	addr string
	is   atomic.Bool
	by   time.Duration // for each answer
}

func slowed(t *testing.T, addr string) *slow {
	t.Helper()
	s := &slow{by: 20 * time.Millisecond}
	s.addr = serving(t, func(client net.Conn) {
		server, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		}()
		chunk := make([]byte, 1<<20)
		for {
			n, err := server.Read(chunk)
			if s.is.Load() {
				time.Sleep(s.by)
			}
			if _, failed := client.Write(chunk[:n]); err != nil || failed != nil {
				return
			}
		}
	})
	return s
}

// Ctrl-C in the middle of a move leaves each message in one place.
func testInterruptedMove(t *testing.T, binary string) {
	const all = 4000
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.bury("orders", "billing", all)
	proxy := slowed(t, w.addr)
	proxy.by = 200 * time.Millisecond // a few calls are left when the keys are pressed
	proxy.is.Store(true)
	s := inTerminal(t, environment(proxy.addr), binary, "dead", "move", "orders", "--to", "retired", "--create", "--yes")
	s.await("move: 1,000 of 4,000")
	s.send(ctrlC)
	require.Equal(t, exitFailed, s.exit())
	require.Regexp(t, `[12],000 of 4,000 dead letters are done, the others are as they were\.`, s.screen())
	require.Contains(t, s.screen(), "interrupted: ")
	requireOnlyOwnSequences(t, strings.ReplaceAll(s.screen(), "^C", ""))
	left, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	moved, err := w.admin.Stats(t.Context(), "retired")
	require.NoError(t, err)
	require.Equal(t, all, left.Messages+moved.Messages)
	require.Positive(t, left.Messages)
	upcoming, err := w.admin.Upcoming(t.Context(), "retired", admin.Load{From: moved.Now, Width: time.Hour, Buckets: 1})
	require.NoError(t, err)
	require.Zero(t, upcoming[0].Waiting, "nothing comes later")
	report, err := w.admin.Check(t.Context(), "orders")
	require.NoError(t, err)
	require.Empty(t, report.Violations())
	// An import that is cut short can be repeated: nothing comes twice.
	exported, err := withEnv(exec.Command(binary, "dead", "export", "orders"), environment(w.addr)).Output()
	require.NoError(t, err)
	file := file(t, string(exported))
	s = inTerminal(t, environment(proxy.addr), binary, "dead", "import", "imported", file, "--every-group", "--yes")
	require.Equal(t, exitFailed, s.exit(), "the topic does not exist")
	w.group("imported", "a")
	s = inTerminal(t, environment(proxy.addr), binary, "dead", "import", "imported", file, "--every-group", "--yes")
	s.await("Imported 500 of ")
	s.send(ctrlC)
	require.Equal(t, exitFailed, s.exit())
	require.Contains(t, s.screen(), "are imported; repeat the command for the others.")
	said, err := withEnv(exec.Command(binary, "dead", "import", "imported", file, "--every-group", "--yes"), environment(w.addr)).CombinedOutput()
	require.NoError(t, err, "%s", said)
	imported, err := w.admin.Stats(t.Context(), "imported")
	require.NoError(t, err)
	require.Equal(t, left.Messages, imported.Messages)
}

// Ctrl-C in the middle of a removal ends it, and a scheduler removes what is left.
func testInterruptedRemoval(t *testing.T, binary string) {
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.bury("orders", "billing", 4000)
	proxy := slowed(t, w.addr)
	proxy.by = 300 * time.Millisecond // and a call removes a thousand messages
	proxy.is.Store(true)
	s := inTerminal(t, environment(proxy.addr), binary, "groups", "rm", "orders", "billing", "--yes")
	left := func() int64 { return w.client.HLen(t.Context(), "redisdelay:{orders}:messages").Val() }
	require.Eventually(t, func() bool { return left() < 4000 }, patience, time.Millisecond, "the removal begins")
	s.send(ctrlC)
	require.Equal(t, exitFailed, s.exit())
	require.Contains(t, s.screen(), "a scheduler removes what is left")
	require.Contains(t, s.screen(), "interrupted: ")
	require.Positive(t, left())
	s = inTerminal(t, environment(w.addr), binary, "schedule", "orders")
	require.Eventually(t, func() bool { return left() == 0 }, patience, 10*time.Millisecond, "a scheduler goes on")
	s.send(ctrlC)
	require.Zero(t, s.exit())
}

// A second Ctrl-C ends the program at once, also while Redis does not answer. One that comes before
// the program has seen the first is the same signal.
func testSecondInterrupt(t *testing.T, binary string) {
	address, asked := silent(t)
	s := inTerminal(t, environment(address), binary, "pause", "orders")
	<-asked
	for ended := false; !ended; {
		_, _ = s.terminal.WriteString(ctrlC)
		select {
		case <-s.ended:
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	require.Equal(t, syscall.SIGINT, s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "it does not end by itself")
}

// However a tail ends, it has taken nothing, and leaves nothing.
func testInterruptedTail(t *testing.T, binary string) {
	w, _ := shop(t, time.Now())
	before := dumps(t, w)
	s := inTerminal(t, environment(w.addr), binary, "tail", "orders")
	s.await("Looking at topic")
	require.Equal(t, groupsOf(before), groupsOf(dumps(t, w)))
	w.publish("orders", "tailed", "news")
	s.await("tailed")
	s.send(ctrlC)
	require.Zero(t, s.exit())

	before = dumps(t, w)
	s = inTerminal(t, environment(w.addr), binary, "tail", "oders")
	s.await("It has no group")
	require.NoError(t, s.cmd.Process.Kill())
	s.exit()
	require.Equal(t, groupsOf(before), groupsOf(dumps(t, w)), "killed")

	cut := withEnv(exec.Command(binary, "tail", "orders"), environment(w.addr))
	out, err := cut.StdoutPipe()
	require.NoError(t, err)
	said := &heard{text: "Looking at topic", do: func() { // the reader is gone, as after: tail orders | head -0
		_ = out.Close()
		w.publish("orders", "unread", "news")
	}}
	cut.Stderr = said
	require.NoError(t, cut.Start())
	require.Error(t, cut.Wait())
	require.Equal(t, groupsOf(before), groupsOf(dumps(t, w)), "SIGPIPE")
}

// groupsOf returns the keys of sets of groups, and those that a group would have.
func groupsOf(dumped map[string]string) map[string]string {
	found := map[string]string{}
	for key, value := range dumped {
		if strings.Contains(key, ":groups") || strings.Contains(key, "broadcast") {
			found[key] = value
		}
	}
	return found
}

// With 10,000 topics doctor has Redis run a few commands for each, those of scripts too.
func testManyTopics(t *testing.T, binary string) {
	const topics = 10_000
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	w.group("topic-0", "billing")
	w.publish("topic-0", "x", "y", redisdelay.DelayKey, "1h")
	// The others are copies of the first, as publishers would have made them.
	keys, err := w.client.Keys(t.Context(), "redisdelay:{topic-0}:*").Result()
	require.NoError(t, err)
	pipe := w.client.Pipeline()
	for i := 1; i < topics; i++ {
		name := fmt.Sprint("topic-", i)
		for _, key := range keys {
			pipe.Copy(t.Context(), key, strings.Replace(key, "topic-0", name, 1), 0, false)
		}
		pipe.SAdd(t.Context(), "redisdelay:topics", name)
		if i%100 == 0 || i == topics-1 { // so that a busy server reads each part in time
			_, err = pipe.Exec(t.Context())
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.client.ConfigResetStat(t.Context()).Err())
	said, err := withEnv(exec.Command(binary, "doctor", "--json"), environment(w.addr)).Output()
	require.Equal(t, exitFailed, exitCode(err))
	require.Contains(t, string(said), fmt.Sprintf(`"count":%d`, topics), "nobody schedules")
	stats, err := w.client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	commands := 0
	for _, calls := range regexp.MustCompile(`:calls=(\d+),`).FindAllStringSubmatch(stats, -1) {
		n, err := strconv.Atoi(calls[1])
		require.NoError(t, err)
		commands += n
	}
	require.NotZero(t, commands)
	t.Logf("%d commands for %d topics", commands, topics)
	require.Less(t, commands, 30*topics)
}

// A user who may only read can use all that only looks, and the rest is refused by name.
func testReadOnlyUser(t *testing.T, binary string) {
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	w.bury("orders", "billing", 3)
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	w.publish("orders", "later", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "name")
	w.recur(w.fromFile("testdata/schedules.yaml")...)
	users, _ := documentedUsers(t)
	require.NoError(t, w.client.Do(t.Context(), users["reader"]...).Err())
	id := w.id("orders", "0")
	run := func(args ...string) (string, int) {
		cmd := withEnv(exec.Command(binary, args...), environment(server.Addr(), "REDISDELAY_REDIS_USERNAME=reader", "REDISDELAY_REDIS_PASSWORD=secret"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
		said, err := cmd.CombinedOutput()
		return string(said), exitCode(err)
	}
	for _, looks := range []string{
		"workers",
		"topics", "groups ls", "groups idle", "top --once --interval 100ms", "upcoming orders",
		"dead reasons orders", "dead ls orders", "dead show orders " + id, "dead export orders", "msg ls orders", "msg get orders name", "msg get orders 1 --by uuid",
		"dead requeue orders --dry-run", "dead purge orders --dry-run", "dead move orders --to x --create --dry-run",
		"groups rm orders billing --dry-run", "topics rm orders --dry-run", "check orders",
		"audit", "tail orders --for 200ms", "schedules ls", "schedules show reports clean-up", "schedules run reports clean-up --dry-run", "schedules rm reports clean-up --dry-run",
	} {
		said, code := run(strings.Fields(looks)...)
		require.Zero(t, code, "%s: %s", looks, said)
	}
	said, code := run("doctor")
	require.Equal(t, exitFailed, code, said)
	require.NotContains(t, said, "may not")
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{orders}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", "lost").Err())
	for _, does := range []string{
		"dead requeue orders --yes", "dead requeue orders --yes " + id, "dead purge orders --yes", "dead move orders --to x --create --yes", "groups rm orders billing --yes", "topics rm orders --yes",
		"msg cancel orders name --yes", "msg reschedule orders name --in 1h", "msg now orders name",
		"msg kill orders name --yes",
		"pause orders", "resume orders", "repair orders --yes", "publish orders", "schedule", "schedule orders",
		"schedules pause reports clean-up", "schedules resume reports clean-up", "schedules run reports clean-up --yes --wait 10ms", "schedules rm reports clean-up --yes",
	} {
		said, code := run(strings.Fields(does)...)
		require.Equal(t, exitFailed, code, "%s: %s", does, said)
		require.Regexp(t, `\+[a-z]+`, said, does)
		require.Contains(t, said, "forbidden", does)
	}
}
