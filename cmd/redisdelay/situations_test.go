package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

const operations = "../../docs/operations.md"

// situations are the recipes of docs/operations.md by their headings. Each function makes the
// situation on a server of its own, and returns its address.
var situations = map[string]func(t *testing.T) (addr string){
	"The reminder of order 4711 never came": aLostReminder,
	"Thousands of dead letters":             thousandsOfDeadLetters,
	"A topic was paused and forgotten":      aForgottenPause,
	"A group that nobody reads":             anUnreadGroup,
	"Messages are late":                     lateMessages,
	"Move those of one kind by two hours":   waitingGifts,
	"A message that kills its workers":      aPoisonMessage,
	"A topic was renamed":                   aRenamedTopic,
	"Redis is full":                         aFullRedis,
}

func aLostReminder(t *testing.T) string {
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	stop := w.subscribe("reminders", redisdelay.SubscriberConfig{ConsumerGroup: "mails"})
	names, err := partition.Topics("invoices", 2)
	require.NoError(t, err)
	for _, name := range names {
		w.group(name, "billing")
	}
	w.publish(names[1], "invoice-4711", `{"order":4711,"net":"19.90"}`, redisdelay.DelayKey, "24h")
	w.publish("reminders", "reminder-17", "die: the mail server is down", "order", "4711")
	w.publish("reminders", "reminder-18", "die: the mail server is down", "order", "4712")
	w.await("reminders", "mails", func(g admin.GroupStats) bool { return g.Dead == 2 })
	stop()
	w.healthy("reminders", "mails") // the mail server is up
	return w.addr
}

func thousandsOfDeadLetters(t *testing.T) string {
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing", MaxInFlight: 200})
	var all []*message.Message
	for i := range 5000 {
		payload := fmt.Sprintf("die: partner 17 answers 503 after %dms", 1000+i)
		if i%1000 == 0 {
			payload = fmt.Sprintf("die: no customer c-%d", i)
		}
		all = append(all, message.NewMessage(fmt.Sprint("order-", i), []byte(payload)))
	}
	require.NoError(t, w.publisher.Publish("orders", all...))
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == 5000 })
	stop()
	w.healthy("orders", "billing") // the partner is back
	return w.addr
}

// healthy consumes a topic in a group, and acks all that comes.
func (w *world) healthy(topic, group string) {
	w.t.Helper()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.client, ConsumerGroup: group}, nil)
	require.NoError(w.t, err)
	messages, err := subscriber.Subscribe(w.t.Context(), topic)
	require.NoError(w.t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for msg := range messages {
			msg.Ack()
		}
	}()
	w.t.Cleanup(func() {
		_ = subscriber.Close()
		<-ended
	})
}

// later is a server ten minutes after make made its data.
func later(t *testing.T, make func(w *world)) *world {
	server := redistest.StartWithClock(t, "--appendonly", "yes")
	server.SetClock(-10 * time.Minute)
	w := newWorld(t, server.Client(t), server.Addr())
	make(w)
	server.SetClock(0)
	return w
}

func aForgottenPause(t *testing.T) string {
	w := later(t, func(w *world) {
		w.group("mails", "default")
		_, err := w.admin.Pause(t.Context(), "mails", admin.PauseOptions{By: "ann@ops", Why: "the mail server is down"})
		require.NoError(t, err)
		for i := range 40 {
			w.publish("mails", fmt.Sprint("mail-", i), "hello")
		}
	})
	w.healthy("mails", "default")
	return w.addr
}

func anUnreadGroup(t *testing.T) string {
	w := later(t, func(w *world) {
		w.group("orders", "audit-2024")
		w.group("orders", "billing")
		for i := range 300 {
			w.publish("orders", fmt.Sprint("order-", i), "new")
		}
	})
	w.healthy("orders", "billing")
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Ready+g.InHand == 0 })
	return w.addr
}

func waitingGifts(t *testing.T) string {
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	w.group("orders", "billing")
	for i := range 40 {
		w.publish("orders", fmt.Sprint("order-", i), "new", redisdelay.DelayKey, "5h", "kind", []string{"gift", "book"}[i%2])
	}
	return w.addr
}

func lateMessages(t *testing.T) string {
	return later(t, func(w *world) {
		w.group("reminders", "relay")
		for i := range 25 {
			w.publish("reminders", fmt.Sprint("reminder-", i), "now", redisdelay.DelayKey, "1s")
		}
	}).addr
}

// asWorker is an environment variable that makes the test binary a worker of the server that it
// names. The worker ends at once when it gets the payload "poison". If asSlowWorker is set, too, it
// has that message for as long as it may.
const (
	asWorker     = "RUN_AS_WORKER"
	asSlowWorker = "RUN_AS_SLOW_WORKER"
)

func work(addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	_, slow := os.LookupEnv(asSlowWorker)
	config := redisdelay.SubscriberConfig{Client: client, ConsumerGroup: "billing", MaxInFlight: 8}
	if !slow {
		config.LeaseDuration = 200 * time.Millisecond
	}
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	if err != nil {
		panic(err)
	}
	messages, err := subscriber.Subscribe(context.Background(), "orders")
	if err != nil {
		panic(err)
	}
	for msg := range messages {
		switch {
		case string(msg.Payload) != "poison":
			msg.Ack()
		case slow:
			<-msg.Context().Done()
		default:
			os.Exit(3)
		}
	}
}

// aPoisonMessage ends two processes. The third has it at the end, so that its counts stay.
func aPoisonMessage(t *testing.T) string {
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	w.group("orders", "billing")
	w.publish("orders", "order-666", "poison")
	ends, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(ends)
		<-ended
	})
	binary, err := os.Executable()
	require.NoError(t, err)
	go func() {
		defer close(ended)
		for starts := 1; ; starts++ {
			env := append(os.Environ(), asWorker+"="+w.addr)
			if starts > 2 {
				env = append(env, asSlowWorker+"=")
			}
			worker := withEnv(exec.Command(binary), env)
			if worker.Start() != nil {
				return
			}
			died := make(chan struct{})
			go func() {
				_ = worker.Wait()
				close(died)
			}()
			select {
			case <-died: // a supervisor starts it again
			case <-ends:
				_ = worker.Process.Kill()
				<-died
				return
			}
		}
	}()
	w.healthy("orders", "shipping")
	require.Eventually(t, func() bool {
		diagnosis, err := w.admin.Diagnose(t.Context(), admin.DiagnoseOptions{})
		require.NoError(t, err)
		return len(diagnosis.Problems) == 1 && diagnosis.Problems[0].Kind == admin.Suspect
	}, patience, 10*time.Millisecond)
	return w.addr
}

func aRenamedTopic(t *testing.T) string {
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	w.publish("orders", "order-1", "die: the partner is down")
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == 1 })
	stop()
	w.publish("orders", "order-2", "x", redisdelay.DelayKey, "24h")
	w.publish("orders", "order-3", "x", redisdelay.DelayKey, "24h", redisdelay.DelayIDKey, "order 4711")
	w.publish("orders", "order-4", "x", redisdelay.DelayKey, "24h", redisdelay.DelayIDKey, "order 4712")
	w.healthy("shop-orders", "billing")
	w.publish("shop-orders", "order-3", "x", redisdelay.DelayKey, "24h", redisdelay.DelayIDKey, "order 4711")
	return w.addr
}

func aFullRedis(t *testing.T) string {
	server := redistest.Start(t, "--appendonly", "yes", "--maxmemory", "24mb", "--maxmemory-policy", "noeviction")
	w := newWorld(t, server.Client(t), server.Addr())
	stop := w.subscribe("uploads", redisdelay.SubscriberConfig{ConsumerGroup: "thumbnails", MaxInFlight: 200})
	image := "die: no such format\n" + strings.Repeat("x", 10_000)
	for _, at := range []int{50, 1} { // the first time, what is on its way takes a part of the memory
		require.Eventually(t, func() bool {
			var some []*message.Message
			for i := range at {
				some = append(some, message.NewMessage(fmt.Sprint("image-", i), []byte(image)))
			}
			err := w.publisher.Publish("uploads", some...)
			return errors.Is(err, redisdelay.ErrServerFull)
		}, patience, time.Millisecond)
		w.await("uploads", "thumbnails", func(g admin.GroupStats) bool { return g.Ready+g.InHand == 0 })
	}
	stop()
	w.healthy("uploads", "thumbnails")
	return w.addr
}

// Each recipe of docs/operations.md mends its situation, with commands only, and prints what the
// document shows.
func testRecipes(t *testing.T, binary string) {
	text, err := os.ReadFile(operations)
	require.NoError(t, err)
	document := string(text)
	sections := strings.Split(document, "\n## ")
	written := make([]string, len(sections))
	t.Run("all", func(t *testing.T) {
		found := 0
		for i, section := range sections {
			heading, _, _ := strings.Cut(section, "\n")
			situation := situations[heading]
			if written[i] = section; situation == nil {
				continue
			}
			found++
			t.Run(heading, func(t *testing.T) {
				t.Parallel()
				addr := situation(t)
				written[i] = play(t, section, filepath.Dir(binary), addr)
			})
		}
		require.Equal(t, len(situations), found, "recipes in docs/operations.md")
	})
	if rewritten := strings.Join(written, "\n## "); updates && rewritten != document {
		require.NoError(t, os.WriteFile(operations, []byte(rewritten), 0o644))
	}
}

// looks matches commands that change nothing.
var looks = regexp.MustCompile(`^redisdelay (doctor|topics( [\w-]+)?$|find|memory|groups ls|groups idle|msg get|dead ls|dead reasons)\b`)

// play runs the commands of a section, which follow "$ " in blocks of "console", in a shell. It
// requires their output, but for what differs from run to run, and returns the section with the
// output of this run.
func play(t *testing.T, section, bin, addr string) string {
	t.Helper()
	var played strings.Builder
	parts := strings.Split(section, "```console\n")
	played.WriteString(parts[0])
	dir := t.TempDir()
	actual := map[string]string{} // ID in the document -> ID in this run
	for _, part := range parts[1:] {
		block, rest, _ := strings.Cut(part, "```")
		played.WriteString("```console\n")
		for _, step := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			if want = strings.TrimSuffix(want, "\n"); want != "" {
				want += "\n"
			}
			real := unsteady.ReplaceAllStringFunc(command, func(id string) string {
				if actual[id] != "" {
					return actual[id]
				}
				return id
			})
			got := shell(t, real, dir, bin, addr)
			for deadline := time.Now().Add(patience); looks.MatchString(real) && roughly(got) != roughly(want) && !updates && time.Now().Before(deadline); {
				got = shell(t, real, dir, bin, addr) // what a command before it has begun is going on
			}
			if roughly(got) == roughly(want) {
				ids := unsteady.FindAllString(got, -1)
				for i, id := range unsteady.FindAllString(want, -1) {
					actual[id] = ids[i]
				}
				got = want
			} else if updates {
				command = real
			} else {
				require.Equal(t, roughly(want), roughly(got), "$ %s\n%s\nUPDATE=1 writes it", command, got)
			}
			played.WriteString("$ " + command + "\n" + got)
		}
		played.WriteString("```" + rest)
	}
	return played.String()
}

// shell runs a command line in a shell that finds the program. What ends with & goes on until the
// test ends.
func shell(t *testing.T, command, dir, bin, addr string) string {
	t.Helper()
	background := strings.HasSuffix(command, " &")
	cmd := exec.Command("bash", "-c", "exec "+strings.TrimSuffix(command, " &"))
	if !background {
		cmd = exec.Command("bash", "-c", command)
	}
	cmd.Dir = dir
	cmd.Env = environment(addr, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	if background {
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
			<-ended
		})
		time.Sleep(300 * time.Millisecond)
		return ""
	}
	select {
	case <-ended:
	case <-time.After(patience):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		require.FailNow(t, "it does not end", "%s\n%s", command, said.String())
	}
	return said.String()
}

// differing is what differs from run to run: times, durations, large numbers, sizes and rates.
var differing = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\dZ|\b\d+,\d{3}\b|\b\d{4,}\b|\b\d+(\.\d+)? ?(MiB|MB|mb|kB|B\b|%)|\bnow\b|\bin \d\S*|\b(\d+(\.\d+)?(d|h|m|ms|µs|s))+( ago)?\b|\b\d+\.\d+\b`)

// roughly returns the text without what differs from run to run, and with single spaces.
func roughly(text string) string {
	host, _ := os.Hostname()
	if host != "" {
		text = strings.ReplaceAll(text, host, "HOST")
	}
	text = unsteady.ReplaceAllString(text, "ID")
	text = regexp.MustCompile(`: (ready|in hand, lease ends .*)\n`).ReplaceAllString(text, ": somewhere\n") // of a poison
	text = regexp.MustCompile(`\d times in a row`).ReplaceAllString(text, "some times in a row")
	text = differing.ReplaceAllString(text, "~")
	return regexp.MustCompile(` +`).ReplaceAllString(text, " ")
}
