package faults

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Wherever a loss of power has cut the append-only file, a topic is as it was after some step,
// whole.
func TestAppendOnlyFileCutAnywhere(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "an append-only file that is cut off in the middle of a step: the topic is as it was before that step, no other; what is answered with appendfsync always is in the file")
	server := redistest.StartWithDisk(t, appendOnly("always")...)
	s := newSteps(t, server)
	s.run()
	files := server.Files()
	require.Equal(t, s.after[len(s.after)-1].length, len(files.Log()), "all was on the disk when it was answered")

	damaged := redistest.Start(t, appendOnly("always")...)
	inside, delivered := 0, 0
	cuts := s.cuts(files.Log())
	for _, length := range cuts {
		damaged.Kill()
		damaged.SetFiles(files.Cut(length))
		damaged.RestartAsIs()
		state := s.at(length)
		if length > state.length {
			inside++
		}
		client := damaged.Client(t)
		require.Equal(t, remembered(state.contents, state.at), remembered(contentsOf(t, client), state.at), "cut at %d, in the middle of what follows %q", length, state.name)
		operator, err := admin.New(admin.Config{Client: client})
		require.NoError(t, err)
		report, err := operator.Check(t.Context(), "t")
		require.NoError(t, err)
		require.Empty(t, report.Violations(), "cut at %d, after %q", length, state.name)
		require.Zero(t, report.Unconfirmed)
		if length == state.length { // once for each step
			delivered += deliverAll(t, client, state)
		}
		require.NoError(t, client.Close())
	}
	require.Greater(t, inside, len(s.after), "most cuts are inside of steps")
	faulttest.Report(t, fmt.Sprintf("%d cuts, %d of them inside of one of %d steps; %d messages delivered afterwards", len(cuts), inside, len(s.after), delivered))
}

// A server that begins with a file that ends in the middle of a step may leave a part of that step
// in the file, with which it begins the next time: see docs/reliability.md. A new file has nothing
// of it.
func TestAppendOnlyFileCutAndServerKilledAgain(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "the server begins with an append-only file that is cut off in the middle of a step, writes a new one, goes on, and is killed again: the topic is as it was when it was killed")
	s := newSteps(t, redistest.StartWithDisk(t, appendOnly("always")...))
	s.run()
	files := s.server.Files()
	inside := s.cuts(files.Log())
	inside = slices.DeleteFunc(inside, func(length int) bool { return s.at(length).length == length })
	damaged := redistest.Start(t, appendOnly("always")...)
	// again returns what there is when the server is killed, and when it has begun again.
	again := func(length int, begin func()) (before, after state) {
		damaged.Kill()
		damaged.SetFiles(files.Cut(length))
		begin()
		look := func(do func(redis.UniversalClient)) state {
			client := damaged.Client(t)
			defer client.Close()
			do(client)
			return state{contents: remembered(contentsOf(t, client), time.Time{}), comes: comesOf(t, client)}
		}
		before = look(s.goOn)
		damaged.Kill()
		damaged.Restart()
		return before, look(func(redis.UniversalClient) {})
	}
	torn := 0
	for _, length := range inside {
		cuts := damaged.Cuts()
		before, after := again(length, damaged.Restart)
		require.Equal(t, cuts+1, damaged.Cuts(), "the server finds that its file is cut off")
		require.Equal(t, before, after, "cut at %d, in the middle of what follows %q", length, s.at(length).name)
		if before, after = again(length, damaged.RestartAsIs); !maps.Equal(before.contents, after.contents) {
			torn++ // a server in which that is mended has none
			if s.takes(files.Log(), length) {
				for group, comes := range before.comes {
					require.Subset(t, after.comes[group], comes, "cut at %d, in the middle of what follows %q, group %s", length, s.at(length).name, group)
				}
			}
		}
	}
	faulttest.Report(t, fmt.Sprintf("%d cuts; without a new file, a part of a step came back after %d of them", len(inside), torn))
}

// takes tells of a place in a file whether it is in a claim or a promotion, and not in the end of
// it: what that takes by place, if it is the last that it writes, and EXEC.
func (s *steps) takes(log []byte, length int) bool {
	s.t.Helper()
	step := slices.IndexFunc(s.after, func(now state) bool { return now.length > length })
	end := 0 // of the last command that is none of these
	for at := s.after[step-1].length; at < s.after[step].length; {
		next := s.commandEnd(log, at)
		if !regexp.MustCompile(`\r\n(LTRIM|ZREMRANGEBYRANK|EXEC)\r\n`).Match(log[at:next]) {
			end = next
		}
		at = next
	}
	return length <= end && slices.Contains([]string{"claim", "claim again", "claim once more", "promote"}, s.after[step].name)
}

// goOn has another program work on the topic: it publishes, moves what is due, and has a message
// acked.
func (s *steps) goOn(client redis.UniversalClient) {
	s.t.Helper()
	topic := queue.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, "t")
	require.NoError(s.t, topic.Publish(s.t.Context(), "Q", 1, []queue.Message{s.message("10", queue.Due{}, queue.Options{})}))
	groups, err := topic.Groups(s.t.Context())
	require.NoError(s.t, err)
	require.NoError(s.t, queue.Do(s.t.Context(), servers.MustClient(client), topic.PromoteCall(groups, "nobody|2", time.Millisecond, true)))
	for _, name := range groups.Names {
		group := topic.Group(name)
		first := claim(s.t, client, group, queue.Claim{Subscription: "T" + name, Number: 1, Limit: 1, Lease: time.Minute})[0]
		require.NoError(s.t, queue.Do(s.t.Context(), servers.MustClient(client), first.ack()...))
	}
}

// state is what there was after a step.
type state struct {
	name     string
	at       time.Time
	length   int // of the file
	contents map[string]string
	comes    map[string][]string // by group: messages that have to come still
}

// steps are transitions, one after the other.
type steps struct {
	t      *testing.T
	server *redistest.Instance
	client redis.UniversalClient
	topic  *operate.Topic
	ids    *queue.IDs
	calls  uint64
	claims uint64
	after  []state
}

func newSteps(t *testing.T, server *redistest.Instance) *steps {
	t.Helper()
	client := server.Client(t)
	s := &steps{t: t, server: server, client: client, topic: operate.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, "t"), ids: queue.NewIDs()}
	for _, group := range []string{"g", "h"} {
		require.NoError(t, s.topic.Register(t.Context(), group, queue.GroupOptions{MaxDeliveries: 9, Retention: time.Hour}))
	}
	s.note("register")
	return s
}

// note takes down what there is. Of the file that is what the disk has, a moment after the answer.
func (s *steps) note(name string) {
	s.t.Helper()
	files, _ := s.server.Disk()
	next := state{name: name, at: time.Now(), length: len(files.Log()), contents: contentsOf(s.t, s.client), comes: comesOf(s.t, s.client)}
	s.after = append(s.after, next)
}

// comesOf is what has to come to each group.
func comesOf(t *testing.T, client redis.UniversalClient) map[string][]string {
	t.Helper()
	k := queue.NewKeys(redisdelay.DefaultKeyPrefix, "t")
	comes, names := map[string][]string{}, map[string]string{}
	for id, body := range client.HGetAll(t.Context(), k.Messages()).Val() {
		msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("t", []byte(body))
		require.NoError(t, err)
		names[id] = msg.UUID
	}
	for _, group := range []string{"g", "h"} {
		for _, key := range []string{k.Pending(), k.Unack(group), k.Retry(group)} {
			for _, id := range client.ZRange(t.Context(), key, 0, -1).Val() {
				comes[group] = append(comes[group], names[id])
			}
		}
		for _, entry := range client.LRange(t.Context(), k.Ready(group), 0, -1).Val() {
			id, _, _ := strings.Cut(entry, ":")
			comes[group] = append(comes[group], names[id])
		}
		slices.Sort(comes[group])
	}
	return comes
}

// run takes each step, in one run of its script.
func (s *steps) run() {
	soon, later := queue.In(50*time.Millisecond), queue.In(time.Hour)
	named := queue.Options{DelayID: "named"}
	s.publish("publish", s.message("1", queue.Due{}, queue.Options{}), s.message("2", queue.Due{}, queue.Options{MaxDeliveries: 5}),
		s.message("3", queue.Due{}, queue.Options{}), s.message("4", soon, queue.Options{}), s.message("5", later, named))
	s.publish("replace", s.message("6", later, named))
	first := s.claim("claim", 3)
	s.do("ack", first[0].ack()...)
	s.do("nack", first[1].nack(queue.Failure{Retry: soon})...)
	s.do("bury", first[2].nack(queue.Failure{Dead: true, Reason: "it died"})...)
	s.promote()
	second := s.claim("claim again", 1)
	s.do("extend", s.topic.Group("g").ExtendCalls(second.all(), time.Millisecond)...)
	faulttest.Eventually(s.t, func() bool {
		before := len(contentsOf(s.t, s.client)[queue.NewKeys(redisdelay.DefaultKeyPrefix, "t").Unack("g")])
		_, err := s.topic.Expire(s.t.Context())
		require.NoError(s.t, err)
		return len(contentsOf(s.t, s.client)[queue.NewKeys(redisdelay.DefaultKeyPrefix, "t").Unack("g")]) != before
	}, time.Minute, 2*time.Millisecond)
	s.note("expire")
	third := s.claim("claim once more", 1)
	s.do("release", s.topic.Group("g").ReleaseCalls(third.all(), false)...)
	n, err := s.topic.Group("g").Requeue(s.t.Context(), []string{first[2].ID})
	require.NoError(s.t, err)
	require.Equal(s.t, 1, n)
	s.note("requeue")
	require.NoError(s.t, s.topic.Reschedule(s.t.Context(), operate.Ref{DelayID: "named"}, soon))
	s.note("reschedule")
	s.publish("publish named", s.message("7", later, queue.Options{DelayID: "another", Window: time.Minute}))
	require.NoError(s.t, s.topic.Cancel(s.t.Context(), operate.Ref{DelayID: "another"}))
	s.note("cancel")
	s.publish("publish more", s.message("8", queue.Due{}, queue.Options{}), s.message("9", soon, queue.Options{}))
}

func (s *steps) message(name string, due queue.Due, options queue.Options) queue.Message {
	s.t.Helper()
	id, err := s.ids.Next(time.Now())
	require.NoError(s.t, err)
	body, err := redisdelay.BinaryMarshaler{}.Marshal("t", message.NewMessage(name, nil))
	require.NoError(s.t, err)
	return queue.Message{ID: id, Due: due, Options: options, Body: body}
}

func (s *steps) publish(name string, messages ...queue.Message) {
	s.t.Helper()
	s.calls++
	require.NoError(s.t, s.topic.Publish(s.t.Context(), "P", s.calls, messages))
	s.note(name)
}

func (s *steps) do(name string, calls ...*queue.Call) {
	s.t.Helper()
	require.NoError(s.t, queue.Do(s.t.Context(), servers.MustClient(s.client), calls...))
	s.note(name)
}

// held are messages in the hand of a group.
type held []one

type one struct {
	*queue.Leased
	group *queue.Group
}

func (h held) all() (all []*queue.Leased) {
	for _, o := range h {
		all = append(all, o.Leased)
	}
	return all
}

func (o one) ack() []*queue.Call { return o.group.AckCalls([]*queue.Leased{o.Leased}) }

func (o one) nack(f queue.Failure) []*queue.Call {
	f.Leased, f.Limit = o.Leased, 9
	return o.group.NackCalls([]queue.Failure{f})
}

func (s *steps) claim(name string, n int) held {
	s.t.Helper()
	s.claims++
	h := claim(s.t, s.client, s.topic.Group("g").Group, queue.Claim{Subscription: "S", Number: s.claims, Limit: n, Lease: time.Second})
	s.note(name)
	return h
}

// claim makes a claim that brings as many messages as it may.
func claim(t *testing.T, client redis.UniversalClient, group *queue.Group, c queue.Claim) (h held) {
	t.Helper()
	c.Bytes = 1 << 20
	call := group.ClaimCall(c)
	require.NoError(t, queue.Do(t.Context(), servers.MustClient(client), call))
	claimed, err := c.ReadClaim(call.Cmd())
	require.NoError(t, err)
	require.Len(t, claimed.Messages, c.Limit)
	for i := range claimed.Messages {
		h = append(h, one{&claimed.Messages[i], group})
	}
	return h
}

// promote moves what is due, which two messages have to be by then.
func (s *steps) promote() {
	s.t.Helper()
	k := queue.NewKeys(redisdelay.DefaultKeyPrefix, "t")
	faulttest.Eventually(s.t, func() bool {
		now := fmt.Sprint(s.client.Time(s.t.Context()).Val().UnixMilli())
		due := s.client.ZCount(s.t.Context(), k.Pending(), "-inf", now).Val() + s.client.ZCount(s.t.Context(), k.Retry("g"), "-inf", now).Val()
		return due == 2
	}, time.Minute, 2*time.Millisecond)
	groups, err := s.topic.Groups(s.t.Context())
	require.NoError(s.t, err)
	s.do("promote", s.topic.PromoteCall(groups, "nobody|1", time.Millisecond, true))
}

// cuts are lengths to cut the file to: each at which a step ends, and some in between. Those are at
// the beginnings of commands, just before and behind them, and in their middles, for a step is a
// transaction of several.
func (s *steps) cuts(log []byte) []int {
	var ends, between []int
	for i, now := range s.after {
		ends = append(ends, now.length)
		if i == 0 {
			continue
		}
		from := s.after[i-1].length
		for at := from; at < now.length; {
			next := s.commandEnd(log, at)
			between = append(between, at+1, (at+next)/2, next-1)
			if next < now.length {
				between = append(between, next)
			}
			at = next
		}
	}
	slices.Sort(between)
	between = slices.Compact(between)
	if some := faulttest.Pick(40, len(between)); len(between) > some {
		var picked []int
		for i := range some {
			picked = append(picked, between[i*len(between)/some])
		}
		between = picked
	}
	all := append(ends, between...)
	slices.Sort(all)
	return slices.Compact(all)
}

// commandEnd is where a command ends in an append-only file that begins at a place.
func (s *steps) commandEnd(log []byte, at int) int {
	s.t.Helper()
	number := func(prefix byte) (n int) {
		line, _, _ := bytes.Cut(log[at:], []byte("\r\n"))
		_, err := fmt.Sscanf(string(line), string(prefix)+"%d", &n)
		require.NoError(s.t, err, "%q", line)
		at += len(line) + len("\r\n")
		return n
	}
	for range number('*') {
		at += number('$') + len("\r\n")
	}
	return at
}

// at is the state after the last step that is in a file of some length.
func (s *steps) at(length int) state {
	found := s.after[0]
	for _, next := range s.after {
		if next.length <= length {
			found = next
		}
	}
	return found
}

// contentsOf is all that a server has.
func contentsOf(t *testing.T, client redis.UniversalClient) map[string]string {
	t.Helper()
	ctx := t.Context()
	found := map[string]string{}
	for _, key := range client.Keys(ctx, "*").Val() {
		switch typ := client.Type(ctx, key).Val(); typ {
		case "hash":
			fields := client.HGetAll(ctx, key).Val()
			for _, field := range slices.Sorted(maps.Keys(fields)) {
				found[key] += fmt.Sprintf("%q=%q ", field, fields[field])
			}
		case "zset":
			found[key] = fmt.Sprint(client.ZRangeWithScores(ctx, key, 0, -1).Val())
		case "list":
			found[key] = fmt.Sprintf("%q", client.LRange(ctx, key, 0, -1).Val())
		case "set":
			found[key] = fmt.Sprintf("%q", slices.Sorted(slices.Values(client.SMembers(ctx, key).Val())))
		case "string":
			found[key] = fmt.Sprintf("%q", client.Get(ctx, key).Val())
		case "none": // what is remembered for some minutes has just expired
		default:
			require.Fail(t, "a key of a type that nobody knows", "%s: %s", key, typ)
		}
	}
	return found
}

// remembered leaves out what may have ended since some time: an operation is remembered for two
// minutes.
func remembered(contents map[string]string, since time.Time) map[string]string {
	left := maps.Clone(contents)
	maps.DeleteFunc(left, func(key, _ string) bool {
		return strings.Contains(key, ":operation:") && time.Since(since) > time.Minute
	})
	return left
}

// deliverAll has subscribers of all groups take what there is, and returns how many messages that
// were: all that have to come, each once.
func deliverAll(t *testing.T, client redis.UniversalClient, state state) (n int) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	operator, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	waiting, err := operator.List(ctx, "t", admin.Query{State: admin.Waiting})
	require.NoError(t, err)
	for _, m := range waiting.Messages {
		require.NoError(t, operator.Reschedule(ctx, "t", admin.ByID(m.ID), admin.When{}))
	}
	for group, comes := range state.comes {
		subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client, ConsumerGroup: group, TakeoverWindow: -1}, nil)
		require.NoError(t, err)
		messages, err := subscriber.Subscribe(ctx, "t")
		require.NoError(t, err)
		var came []string
		for range comes {
			select {
			case msg := <-messages:
				came = append(came, msg.UUID)
				msg.Ack()
			case <-time.After(time.Minute):
				require.Fail(t, "not all comes", "group %s after %q: %q of %q", group, state.name, came, comes)
			}
		}
		require.NoError(t, subscriber.Close())
		slices.Sort(came)
		require.Equal(t, comes, came, "group %s after %q", group, state.name)
		n += len(came)
	}
	return n
}
