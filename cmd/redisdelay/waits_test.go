package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// wares has a topic in which six gifts and three books wait, an hour apart. Two gifts have a delay
// ID.
func wares(t *testing.T) *world {
	t.Helper()
	w := emptyWorld(t)
	w.group("orders", "billing")
	for i := range 9 {
		kind := []string{"gift", "gift", "book"}[i%3]
		pairs := []string{redisdelay.DelayKey, fmt.Sprint(i+1, "h"), "kind", kind}
		if i < 2 {
			pairs = append(pairs, redisdelay.DelayIDKey, fmt.Sprint("order ", i))
		}
		if i == 3 {
			pairs = append(pairs, redisdelay.ExpiresAtKey, time.Now().Add(100*time.Hour).UTC().Format(time.RFC3339), redisdelay.OnExpiryKey, "dead", redisdelay.MaxDeliveriesKey, "7")
		}
		w.publish("orders", fmt.Sprint("uuid ", i), "payload \xff", pairs...)
	}
	return w
}

// waiting returns the messages that wait in a topic, without their IDs, by UUID.
func (w *world) waiting(topic string) map[string]admin.Message {
	w.t.Helper()
	page, err := w.admin.List(w.t.Context(), topic, admin.Query{State: admin.Waiting, Limit: 1000})
	require.NoError(w.t, err)
	all := map[string]admin.Message{}
	for _, m := range page.Messages {
		m.ID = ""
		all[m.UUID] = m
	}
	require.Len(w.t, all, len(page.Messages), "no message is there twice")
	return all
}

func TestManyMessagesAreMovedAndMovedBack(t *testing.T) {
	t.Parallel()
	w := wares(t)
	before := w.waiting("orders")
	file := filepath.Join(t.TempDir(), "gifts of today.ndjson")
	shift := []string{"msg", "reschedule", "orders", "--metadata", "kind=gift", "--by", "2h"}

	status, _, said := w.run("", append(shift, "--yes")...)
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "--by needs --export FILE")
	status, out, said := w.run("", append(shift, "--dry-run")...)
	require.Zero(t, status, said)
	require.Contains(t, out, `This would reschedule 6 messages of topic "orders" by 2h.`)
	require.Equal(t, before, w.waiting("orders"))
	status, _, said = w.run("", append(shift, "--export", file)...)
	require.Equal(t, exitRefused, status, "nobody can be asked")
	require.Contains(t, said, "say --yes")
	require.NoFileExists(t, file)
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Empty(t, entries)

	status, out, said = w.run("", append(shift, "--export", file, "--yes")...)
	require.Zero(t, status, said)
	entries, err = os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left beside the file")
	require.Contains(t, out, `Done: reschedule 6 messages of topic "orders".`)
	require.Contains(t, said, "redisdelay msg reschedule orders --state waiting --from '"+file+"'")
	moved := w.waiting("orders")
	for uuid, m := range before {
		want := m.Places[0].At
		if m.Metadata["kind"] == "gift" {
			want = want.Add(2 * time.Hour)
		}
		require.True(t, moved[uuid].Places[0].At.Equal(want), uuid)
	}

	// The file is never overwritten. With it, the command moves nothing twice.
	status, _, said = w.run("", append(shift, "--export", file, "--yes")...)
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "the file exists; name a new one")
	status, out, said = w.run("", append(shift, "--from", file, "--yes")...)
	require.Zero(t, status, said)
	require.Contains(t, out, "Done: reschedule 0 messages")
	require.Contains(t, said, "6 messages did not wait for that time any more")
	require.Equal(t, moved, w.waiting("orders"))

	status, out, said = w.run("", "msg", "reschedule", "orders", "--from", file, "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, "Done: reschedule 6 messages")
	require.Equal(t, before, w.waiting("orders"))

	acts, _, err := w.admin.Acts(t.Context(), "", 0)
	require.NoError(t, err)
	require.Equal(t, "done: 6 messages", acts[0].Detail)
	require.Equal(t, "begins with 6 messages, state waiting, by 2h, file "+file, strings.Replace(acts[len(acts)-1].Detail, "metadata kind=gift, ", "", 1))
}

func TestACommandOnManyMessagesSaysWhatIsMeant(t *testing.T) {
	t.Parallel()
	w := wares(t)
	for _, c := range []struct{ args, want string }{
		{"msg cancel orders --yes", "name a MESSAGE"},
		{"msg cancel orders --limit 3 --yes", "name a MESSAGE"},
		{"msg now orders --yes", "say --all"},
		{"msg cancel orders x --all --yes", "with MESSAGE there is nothing else to choose"},
		{"msg cancel orders --all --metadata a=b --yes", "--all is with other flags"},
		{"msg cancel orders --state dead --yes", `--state is "dead"`},
		{"msg cancel orders --all --group billing --yes", "--group is of retries"},
		{"msg reschedule orders --all --yes", "set one of --by, --in and --at"},
		{"msg reschedule orders --all --by 2h --in 1h --yes", "set one of --by, --in and --at"},
		{"msg reschedule orders --all --by id --yes", `--by is "id"; without MESSAGE`},
		{"msg cancel orders --from missing.ndjson --yes", "no such file"},
		{"msg cancel orders --from missing.ndjson --export x --yes", "--export and --from are set"},
	} {
		status, _, said := w.run("", strings.Fields(c.args)...)
		require.Equal(t, exitRefused, status, c.args)
		require.Contains(t, said, c.want, c.args)
	}
	for _, name := range []string{"since", "until", "from", "metadata", "state", "group", "export"} {
		for _, command := range []string{"cancel", "now"} {
			status, _, said := w.run("", "msg", command, "orders", "--"+name+"=", "--yes")
			require.Equal(t, exitRefused, status, "%s: %s", name, said)
		}
	}
	status, _, said := w.run("", "msg", "cancel", "orders", "--all=false", "--yes")
	require.Equal(t, exitRefused, status, said)
	require.Len(t, w.waiting("orders"), 9)
	status, out, said := w.run("", "msg", "now", "orders", "--all", "--limit", "2", "--json", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, `{"action":"deliver-now","topic":"orders","count":2,"unit":"message"}`)
	status, out, said = w.run("", "msg", "cancel", "orders", "uuid 8", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, "Done: cancel message ")
	acts, _, err := w.admin.Acts(t.Context(), "", 1)
	require.NoError(t, err)
	require.Regexp(t, `^due was 20\d\d-\d\d-\d\dT[0-9:.]+Z$`, acts[0].Detail)
}
