package queue_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

var update = flag.Bool("update", false, "write the golden files")

// ofTopic is how many keys of keysOfTopic are not the group's.
const ofTopic = 23

// slotOf is the cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it.
func slotOf(key string) int {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if tag, _, closed := strings.Cut(key[open+1:], "}"); closed && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}

func TestSlotOfKnownKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, 12739, slotOf("123456789")) // the cluster specification's example
	require.Equal(t, slotOf("user1000"), slotOf("{user1000}.following"))
	require.Equal(t, slotOf("bar"), slotOf("foo{bar}{zap}"))
	require.Equal(t, slotOf("{bar"), slotOf("foo{{bar}}zap"))
	require.NotEqual(t, slotOf(""), slotOf("foo{}{bar}"))
}

// keysOfTopic are all keys that a topic has with one group, publisher and subscription.
func keysOfTopic(k queue.Keys, group, publisher, subscription string) []string {
	return []string{k.Meta(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Groups(), k.Scheduler(), k.Idle(),
		k.Names(), k.Taken(), k.Paused(), k.Resumes(), k.Counters(), k.Schedules(), k.Programs(), k.Active(), k.Limits(), k.Ended(), k.Restored(), k.Operation(publisher), k.Handling("s: %", group),
		k.Publisher(publisher), k.Claim(subscription), k.Ready(group), k.Unack(group), k.Leases(group),
		k.Retry(group), k.Deliveries(group), k.Waiters(group), k.Dead(group), k.Resting(group), k.Stats(group), k.Suspects(group), k.Workers(group), k.Standby(group), k.Limited(group), k.History(group), k.RestoredRetries(group)}
}

func TestEachKeyHasAType(t *testing.T) {
	t.Parallel()
	for _, key := range keysOfTopic(queue.NewKeys("p", "a{b}:c"), "a:b c", "PUBLISHER", "SUBSCRIPTION") {
		typ, _ := queue.TypeOf(key)
		require.Contains(t, []string{"hash", "zset", "list", "string", "stream"}, typ, key)
	}
	typ, expires := queue.TypeOf("orders:new")
	require.Equal(t, "stream", typ)
	require.True(t, expires)
}

// Check looks at all of them.
func TestAllKeysOfATopicAreThoseOfItsGroupsAndItsOwn(t *testing.T) {
	t.Parallel()
	k := queue.NewKeys("p", "t")
	all := append(keysOfTopic(k, "a", "P", "S"), keysOfTopic(k, "b", "P", "S")...)
	ofCalls := []string{k.Operation("P"), k.Publisher("P"), k.Claim("S"), k.Handling("s: %", "a"), k.Handling("s: %", "b")}
	all = slices.DeleteFunc(all, func(key string) bool { return slices.Contains(ofCalls, key) })
	slices.Sort(all)
	require.Equal(t, slices.Compact(all), k.All([]string{"a", "b"}))
}

// Other versions of this program use the same names of keys and channels.
func TestNamesOfKeysAndTheirSlots(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	list := func(names ...string) {
		for _, name := range names {
			fmt.Fprintf(&b, "%5d %s\n", slotOf(name), name)
		}
	}
	list(queue.Registry(queue.DefaultPrefix), queue.AuditLog(queue.DefaultPrefix), queue.Partitionings(queue.DefaultPrefix), queue.IgnoredProblems(queue.DefaultPrefix), queue.NewTopics(queue.DefaultPrefix, 0),
		queue.MailboxChannel(queue.DefaultPrefix, "PROCESS"))
	for _, topic := range []string{"orders", "a{b}c%", "ünïcode topic"} {
		k := queue.NewKeys(queue.DefaultPrefix, topic)
		list(keysOfTopic(k, "default", "PUBLISHER", "SUBSCRIPTION")...)
		list(keysOfTopic(k, "a:b {c}", "", "")[ofTopic:]...)
	}
	list(queue.NewKeys("", "orders").Meta(), queue.Registry(""))

	golden(t, "testdata/keys.golden", b.String())
}

// golden compares a text with that of a file.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// Other versions of this program, and its scripts, read the same options of messages. A guard is
// the option of an occurrence of a recurring schedule.
func TestTextsOfOptions(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000)
	var b strings.Builder
	for _, o := range []queue.Options{
		{MaxDeliveries: 3},
		{MaxDeliveries: -7, DelayID: "order 1%@", Window: time.Minute, Mode: queue.Keep},
		{DelayID: "order 1", Mode: queue.Reject},
		{Expiry: queue.Expiry{At: at}},
		{Expiry: queue.Expiry{Lateness: time.Minute, Dead: true}},
		{DelayID: queue.OccurrenceID("s", at), Guard: queue.Follows(4, at.Add(-3*time.Hour), at.Add(-2*time.Hour), at.Add(time.Hour), 5)},
		{DelayID: queue.OccurrenceID("s", at), Guard: queue.AskedFor(4)},
	} {
		fmt.Fprintln(&b, o.Encode())
	}
	golden(t, "testdata/options.golden", b.String())
}

// Other versions of this program read the same records of recurring schedules, and of what is
// handled.
func TestTextsOfSchedules(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var b strings.Builder
		list := func(what, text string) {
			fmt.Fprintf(&b, "%s: %s\n", what, regexp.MustCompile(`\d{13}`).ReplaceAllString(text, "MS"))
		}
		record := func(what string) { list(what, w.Client.HGet(ctx, w.keys.Schedules(), "s").Val()) }
		jitter := func(a *queue.Amendment) { a.Jitter = 7 * time.Millisecond }
		r := w.amend(queue.Put, "s", jitter).Record
		record("begun")
		w.follow(r, w.hour(1), w.hour(2))
		at := w.hour(3)
		w.publish(occurrence("s", at, queue.Follows(1, time.Time{}, w.hour(2), at, 5)))
		record("three wait, five were missed")
		w.amend(queue.RunSchedule, "s")
		w.amend(queue.PauseSchedule, "s")
		w.amend(queue.AskSchedule, "s", seen(1, ""))
		record("paused, asked to run, and its programs asked to answer")
		w.amend(queue.PauseSchedule, "s", func(a *queue.Amendment) { a.For, a.By, a.Why = time.Hour, "ann@ops", "no, not now" })
		record("paused for an hour, by somebody and for a reason")
		w.amend(queue.ResumeSchedule, "s")
		w.amend(queue.FailSchedule, "s", seen(1, ""), func(a *queue.Amendment) { a.Error = "no file: a,b" })
		list("resumed, and a program failed to publish", strings.Replace(w.Client.HGet(ctx, w.keys.Schedules(), "s").Val(), ","+queue.EncodeName(must(os.Hostname()))+",", ",HOST,", 1))
		w.follow(w.recurring("s"), w.hour(1))
		list("and published again", strings.Replace(w.Client.HGet(ctx, w.keys.Schedules(), "s").Val(), ","+queue.EncodeName(must(os.Hostname()))+",", ",HOST,", 1))
		w.amend(queue.RemoveSchedule, "s")
		record("removed")
		list("the last change", w.Client.HGet(ctx, w.keys.Schedules(), ":").Val())

		first, second := w.topic.Handle("s", "a", w.hour(1), time.Hour), w.topic.Handle("s", "a", w.hour(2), time.Hour)
		handled := func(what string, h *queue.Handling, again time.Duration) {
			require.NoError(t, only(h.Begin(ctx, again, true)))
			list(what, regexp.MustCompile(` [0-9A-Z]{16} `).ReplaceAllString(w.Client.Get(ctx, w.keys.Handling("s", "a")).Val(), " TOKEN "))
		}
		handled("an occurrence is in hand", first, 0)
		handled("another is next", second, time.Hour)
		golden(t, "testdata/schedules.golden", b.String())
	}, "a")
}

func FuzzTopicsHaveTheirOwnKeysInOneSlot(f *testing.F) {
	for _, topic := range []string{"a", "{", "}", "{}", "{a}", "a}b{", "%", "%7B", "%257B", "%25", "a:b", ":", " ", "\x00", "ü", "\xff"} {
		f.Add(topic, "b", "g")
		f.Add(topic, topic+"}", "}:ready:g")
	}
	f.Fuzz(func(t *testing.T, topic, other, group string) {
		if topic == "" || other == "" {
			t.Skip() // refused by CheckTopic
		}
		encoded := queue.EncodeTopic(topic)
		if strings.ContainsAny(encoded, "{}") {
			t.Errorf("%q is encoded as %q, with a brace", topic, encoded)
		}
		if (topic == other) != (encoded == queue.EncodeTopic(other)) {
			t.Errorf("%q and %q are both encoded as %q", topic, other, encoded)
		}
		keys := keysOfTopic(queue.NewKeys("prefix", topic), group, "P", "S")
		for _, key := range keys {
			if slotOf(key) != slotOf(keys[0]) {
				t.Errorf("%q and %q are in different slots", keys[0], key)
			}
			if !strings.ContainsAny(topic, "%{}") && slotOf(key) != slotOf(topic) {
				t.Errorf("%q is not in the slot of a key %q", key, topic)
			}
		}
		if topic == other {
			return
		}
		others := map[string]bool{}
		for _, key := range keysOfTopic(queue.NewKeys("prefix", other), group, "P", "S") {
			others[key] = true
		}
		for _, key := range keys {
			if others[key] {
				t.Errorf("%q is a key of both %q and %q", key, topic, other)
			}
		}
	})
}

func FuzzGroupsHaveTheirOwnKeys(f *testing.F) {
	for _, group := range []string{"", "a", ":", "ready", "ready:a", "a:ready:", "{", "}", "}:x", "%", "\x00", "*", "ü"} {
		f.Add(group, "default")
		f.Add(group, group+":")
	}
	f.Fuzz(func(t *testing.T, group, other string) {
		k := queue.NewKeys("prefix", "topic")
		seen := map[string]string{}
		add := func(key, what string) {
			if before := seen[key]; before != "" {
				t.Errorf("%q is %s and %s", key, before, what)
			}
			seen[key] = what
		}
		for i, key := range keysOfTopic(k, group, "P", "S") {
			add(key, fmt.Sprintf("key %d, of group %q", i, group))
		}
		add(k.Publisher("S"), "a publisher")
		add(k.Claim("P"), "a subscription")
		if group == other {
			return
		}
		for i, key := range keysOfTopic(k, other, "P", "S")[ofTopic:] {
			add(key, fmt.Sprintf("key %d, of group %q", i, other))
		}
	})
}

func TestPrefixesDoNotMeet(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, prefix := range []string{"", "a", "a:", "a:b", "b", ":"} {
		for _, topic := range []string{"a", "b", "a:b", ":", "topics"} {
			for _, key := range append(keysOfTopic(queue.NewKeys(prefix, topic), "g", "P", "S"), queue.Registry(prefix)) {
				owner := prefix + " / " + topic
				if key == queue.Registry(prefix) {
					owner = prefix
				}
				if before, found := seen[key]; found {
					require.Equal(t, before, owner, key)
				}
				seen[key] = owner
			}
		}
	}
}

// Without a name there is no tag: the keys would be in different slots. CheckTopic refuses it.
func TestKeysOfAnEmptyTopicHaveNoTag(t *testing.T) {
	t.Parallel()
	k := queue.NewKeys("prefix", "")
	require.NotEqual(t, slotOf(k.Meta()), slotOf(k.Messages()))
	require.Error(t, queue.CheckTopic(""))
}
