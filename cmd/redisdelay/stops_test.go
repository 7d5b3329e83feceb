package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// server is that of the world, for helpers of other tests.
func (w *world) server() redistest.Server {
	return redistest.Server{Client: w.client, Prefix: redisdelay.DefaultKeyPrefix}
}

// recurs gives a topic n schedules.
func (w *world) recurs(topic string, n int) {
	w.t.Helper()
	w.recur(w.fromFile("testdata/schedules.yaml")[0])
	first := w.fromFile("testdata/schedules.yaml")[0]
	record := w.client.HGet(w.t.Context(), queue.NewKeys(redisdelay.DefaultKeyPrefix, first.Topic).Schedules(), queue.EncodeName(first.Name)).Val()
	require.NotEmpty(w.t, record)
	testkit.Groups(w.t, w.server(), topic, "g")
	for i := range n {
		require.NoError(w.t, w.client.HSet(w.t.Context(), queue.NewKeys(redisdelay.DefaultKeyPrefix, topic).Schedules(), fmt.Sprint("s", i), record).Err())
	}
}

// A list of the tool either has all, or says that it stops.
func TestAListOfTheToolThatStopsAtASizeSaysSo(t *testing.T) {
	t.Parallel()
	const limited = "There are more; --limit says how many are shown."
	letters := func(w *world, n int) {
		var reasons []string
		for i := range n {
			reasons = append(reasons, "order "+testkit.Letters(i))
		}
		testkit.DeadLetters(w.t, w.server(), "orders", "g", reasons...)
	}
	waits := func(w *world, n int) {
		for i := range n {
			w.publish("orders", fmt.Sprint("uuid ", i), "order 4711", redisdelay.DelayKey, "1h", "kind", "gift")
		}
	}
	for name, c := range map[string]struct {
		args string
		n    int // entries
		make func(w *world, n int)
		rows int    // that are printed
		says string // "": the list has all
	}{
		"reasons":          {"dead reasons orders", 1001, letters, 1000, "These are the first 1,000 reasons that were found. Dead letters of others: 1."},
		"all reasons":      {"dead reasons orders", 1000, letters, 1000, ""},
		"dead letters":     {"dead ls orders", 101, letters, 100, limited},
		"all dead letters": {"dead ls orders", 100, letters, 100, ""},
		"schedules":        {"schedules ls orders", 250, func(w *world, n int) { w.recurs("orders", n) }, 250, ""},
		"workers": {"workers orders", 250, func(w *world, n int) {
			testkit.Groups(w.t, w.server(), "orders", "g")
			testkit.Workers(w.t, w.server(), "orders", "g", n)
		}, 250, ""},
		"groups":          {"groups ls orders", 250, func(w *world, n int) { testkit.Groups(w.t, w.server(), "orders", numbered(n)...) }, 250, ""},
		"messages":        {"msg ls orders", 101, waits, 100, limited},
		"all messages":    {"msg ls orders", 100, waits, 100, ""},
		"search":          {"find 4711", 21, waits, 20, "what was not reached: enough messages were found before"},
		"whole search":    {"find 4711", 19, waits, 19, ""},
		"upcoming":        {"upcoming orders --metadata kind=gift --most 5 --buckets 3 --width 1h", 6, waits, 0, "Not all was counted: 5 messages were read, which is --most"},
		"topics":          {"topics", 250, func(w *world, n int) { w.topics(n) }, 250, ""},
		"largest topics":  {"memory", 21, func(w *world, n int) { w.topics(n) }, 20, "These are the largest of 21 topics"},
		"sizes of topics": {"memory", 20, func(w *world, n int) { w.topics(n) }, 20, ""},
		"problems":        {"doctor --kind unread-group", 250, func(w *world, n int) { w.topics(n) }, 250, ""},
		"changes":         {"audit", 51, (*world).changes, 50, limited},
		"all changes":     {"audit", 50, (*world).changes, 50, ""},
		"ended messages":  {"history orders", 51, (*world).endings, 50, limited},
		"all ended ones":  {"history orders", 50, (*world).endings, 50, ""},
		"occurrences":     {"schedules show orders s --next 5", 6, (*world).occurrences, 5, "Others follow; --next says how many are shown."},
		"their last ones": {"schedules show orders s --next 5", 5, (*world).occurrences, 5, ""},
		"no occurrences":  {"schedules show orders s --next 0", 5, (*world).occurrences, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mini, client := redistest.Embedded(t)
			w := newWorld(t, client, mini.Addr())
			c.make(w, c.n)
			_, out, said := w.run("", strings.Fields(c.args)...)
			rows := strings.Count(out, "\n") - 1 // without the heading
			switch {
			case strings.HasPrefix(c.args, "doctor"):
				rows = strings.Count(out, "Nobody subscribes to group")
			case strings.HasPrefix(c.args, "schedules show"):
				rows = strings.Count(out, ", there ")
			case c.rows == 0:
				rows = 0
			}
			require.Equal(t, c.rows, rows, "%s%s", out, said)
			if c.says != "" {
				require.Contains(t, said, c.says)
			} else {
				require.NotRegexp(t, `There are more|the first|Others follow|not reached|the largest of|Not all`, said)
			}
		})
	}
}

// numbered returns n names.
func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%04d", i))
	}
	return names
}

// topics makes topics with a message that nobody reads.
func (w *world) topics(n int) {
	w.t.Helper()
	for _, name := range numbered(n) {
		testkit.Groups(w.t, w.server(), name, "g")
		require.NoError(w.t, w.client.RPush(w.t.Context(), queue.NewKeys(redisdelay.DefaultKeyPrefix, name).Ready("g"), "01M7Y3SQGNBVX5P66MY8JV56FH:1000").Err())
	}
}

func (w *world) changes(n int) {
	w.t.Helper()
	for range n {
		require.NoError(w.t, w.admin.Record(w.t.Context(), admin.Act{By: "ann", Action: "pause", Topic: "orders"}))
	}
}

func (w *world) endings(n int) {
	w.t.Helper()
	testkit.Groups(w.t, w.server(), "orders", "g")
	_, err := w.admin.SetHistory(w.t.Context(), "orders", "g", admin.History{Retention: time.Hour})
	require.NoError(w.t, err)
	for i := range n {
		require.NoError(w.t, w.client.XAdd(w.t.Context(), &redis.XAddArgs{Stream: queue.NewKeys(redisdelay.DefaultKeyPrefix, "orders").Ended(), ID: fmt.Sprintf("%d-1", i+1),
			Values: []any{"how", "cancelled", "id", fmt.Sprint("id", i), "at", i + 1}}).Err())
	}
}

// occurrences makes a schedule that has so many occurrences.
func (w *world) occurrences(n int) {
	w.t.Helper()
	zone, err := time.LoadLocation("Asia/Tokyo") // without summer time
	require.NoError(w.t, err)
	w.recur(periodic.Schedule{Name: "s", Topic: "orders", Spec: fmt.Sprintf("0 %d * * *", (time.Now().In(zone).Hour()+12)%24), Location: zone,
		End:     time.Now().Add(time.Duration(n) * 24 * time.Hour),
		Message: func(periodic.Occurrence) (*message.Message, error) { return message.NewMessage("", nil), nil }})
}

// top has as many rows as the screen, and says which of how many.
func TestTopSaysWhichRowsItShows(t *testing.T) {
	t.Parallel()
	screen, err := os.Create(filepath.Join(t.TempDir(), "screen")) // it has no size, so it counts as 24 lines
	require.NoError(t, err)
	defer screen.Close()
	drawn := func(shown *top, n int) string {
		require.NoError(t, screen.Truncate(0))
		_, err := screen.Seek(0, 0)
		require.NoError(t, err)
		var rows []topRow
		for _, name := range numbered(n) {
			rows = append(rows, topRow{Topic: name})
		}
		shown.draw(screen, rows, nil)
		text, err := os.ReadFile(screen.Name())
		require.NoError(t, err)
		return string(text)
	}
	shown := &top{app: &app{out: &output{out: &sink{}}}, sort: "name", interval: time.Second}
	require.NotContains(t, drawn(shown, 21), "Rows")
	text := drawn(shown, 1022)
	require.Contains(t, text, "Rows 1 to 21 of 1,022. ")
	require.Contains(t, text, "n0020")
	require.NotContains(t, text, "n0021")
	shown.first = 1
	require.Contains(t, drawn(shown, 22), "Rows 2 to 22 of 22. ")
}
