package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// world is what a test of commands looks at: topics with messages in each state.
type world struct {
	t         *testing.T
	client    redis.UniversalClient
	addr      string
	admin     *admin.Admin
	publisher *redisdelay.Publisher
}

func newWorld(t *testing.T, client redis.UniversalClient, addr string) *world {
	t.Helper()
	operator, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	return &world{t: t, client: client, addr: addr, admin: operator, publisher: publisher}
}

// environment has commands look there. A busy machine may be slow to answer.
func (w *world) environment() []string {
	return []string{"REDISDELAY_REDIS=" + w.addr, "REDISDELAY_REDIS_TIMEOUT=30s"}
}

// publish publishes a message with the payload, and metadata key, value, key, value.
func (w *world) publish(topic, uuid, payload string, metadata ...string) {
	w.t.Helper()
	msg := message.NewMessage(uuid, []byte(payload))
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	require.NoError(w.t, w.publisher.Publish(topic, msg))
}

// subscribe consumes a topic in a group until the test ends, or until stop is called. What becomes
// of a message its payload says: "die: reason", "retry" (in an hour) or "retry: 30s", "hold", or
// else an ack.
func (w *world) subscribe(topic string, config redisdelay.SubscriberConfig) (stop func()) {
	w.t.Helper()
	config.Client = w.client
	config.CloseTimeout = 10 * time.Millisecond
	config.TakeoverWindow = cmp.Or(config.TakeoverWindow, -1) // else the topic's counts depend on the time
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	require.NoError(w.t, err)
	messages, err := subscriber.Subscribe(context.Background(), topic)
	require.NoError(w.t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for msg := range messages {
			switch verb, reason, _ := strings.Cut(string(msg.Payload), ": "); verb {
			case "die":
				reason, _, _ := strings.Cut(reason, "\n")
				redisdelay.DeadOnNack(msg, errors.New(reason))
				msg.Nack()
			case "retry":
				after, _ := time.ParseDuration(reason)
				redisdelay.DelayFor(msg, cmp.Or(after, time.Hour))
				msg.Nack()
			case "hold":
				go func() { <-msg.Context().Done() }()
			default:
				msg.Ack()
			}
		}
	}()
	stop = func() {
		_ = subscriber.Close()
		<-ended
	}
	w.t.Cleanup(stop)
	return stop
}

// recur runs schedules until their next occurrences are in Redis.
func (w *world) recur(schedules ...periodic.Schedule) {
	w.t.Helper()
	p, err := periodic.New(periodic.Config{Publisher: w.publisher}, nil)
	require.NoError(w.t, err)
	require.NoError(w.t, p.Add(schedules...))
	running, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(running) }()
	for _, s := range schedules {
		require.Eventually(w.t, func() bool {
			there, err := oneSchedule(w.t.Context(), w.admin, s.Topic, s.Name)
			return err == nil && !there.Next.IsZero()
		}, patience, 2*time.Millisecond, "schedule %q has no occurrence", s.Name)
	}
	end()
	require.NoError(w.t, <-ended)
}

func (w *world) fromFile(name string) []periodic.Schedule {
	w.t.Helper()
	schedules, err := readSchedules(name)
	require.NoError(w.t, err)
	return schedules
}

// group makes a group without a subscriber.
func (w *world) group(topic, group string) {
	w.t.Helper()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.client, ConsumerGroup: group, TakeoverWindow: -1}, nil)
	require.NoError(w.t, err)
	require.NoError(w.t, subscriber.SubscribeInitialize(topic))
	require.NoError(w.t, subscriber.Close())
}

// await waits until a group of a topic is as it should be.
func (w *world) await(topic, group string, is func(admin.GroupStats) bool) {
	w.t.Helper()
	var last admin.GroupStats
	require.Eventually(w.t, func() bool {
		stats, err := w.admin.Stats(w.t.Context(), topic)
		require.NoError(w.t, err)
		for _, g := range stats.Groups {
			if last = g; g.Group == group && is(g) {
				return true
			}
		}
		return false
	}, patience, 2*time.Millisecond, "group %q of topic %q is not as it should be", group, topic)
	_ = last
}

// run runs a command in this process, and returns what it printed on both streams.
func (w *world) run(stdin string, args ...string) (status int, out, said string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return w.with(ctx, stdin, args...)
}

// heard calls do once, in a goroutine, when a text was written. It keeps all that was written.
type heard struct {
	strings.Builder
	text string
	do   func()
}

func (h *heard) Write(p []byte) (int, error) {
	n, err := h.Builder.Write(p)
	if h.do != nil && strings.Contains(h.String(), h.text) {
		go h.do()
		h.do = nil
	}
	return n, err
}

// tail runs the command tail, and calls do in a goroutine once it looks.
func (w *world) tail(do func(), args ...string) (status int, stdout, stderr string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return w.hear(ctx, "Looking at topic", do, append([]string{"tail"}, args...)...)
}

// hear runs a command, and calls do in a goroutine once the command has written a text to standard
// error.
func (w *world) hear(ctx context.Context, text string, do func(), args ...string) (status int, stdout, stderr string) {
	var out strings.Builder
	errs := &heard{text: text, do: do}
	status = run(ctx, args, system{environment: w.environment(), stdin: strings.NewReader(""), stdout: &out, stderr: errs})
	return status, out.String(), errs.String()
}

func (w *world) with(ctx context.Context, stdin string, args ...string) (status int, stdout, stderr string) {
	var out, errs strings.Builder
	sys := system{environment: w.environment(), stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, completes: patience}
	status = run(ctx, args, sys)
	return status, out.String(), errs.String()
}

// id returns the ID of the message with a UUID.
func (w *world) id(topic, uuid string) string {
	w.t.Helper()
	a := newApp(system{environment: w.environment()})
	a.out = newOutput(a.sys, false)
	m, _, err := a.find(w.t.Context(), w.admin, topic, uuid, naming{by: "uuid"})
	require.NoError(w.t, err)
	require.NotEmpty(w.t, m.ID, uuid)
	return m.ID
}

// scrubbed replaces what differs from run to run by something of the same length.
type scrubbed struct{ names map[string]string }

var unsteady = regexp.MustCompile(`\b(01[0-9A-HJKMNP-TV-Z]{24}|[0-9A-HJKMNP-TV-Z]{16}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b`)

func (s *scrubbed) scrub(text string) string {
	return unsteady.ReplaceAllStringFunc(text, func(found string) string {
		if s.names == nil {
			s.names = map[string]string{}
		}
		if s.names[found] == "" {
			name := fmt.Sprintf("%0*d", len(found)-2, len(s.names)+1)
			s.names[found] = "ID" + name
		}
		return s.names[found]
	})
}

// shellWords returns the arguments of a command of the tool as bash reads them.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	rest, ok := strings.CutPrefix(line, "redisdelay ")
	require.True(t, ok, line)
	out, err := exec.Command("bash", "-c", `printf '%s\0' `+rest).Output()
	require.NoError(t, err, line)
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
