package queue_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

const header = `-- new: is for a test.
--
-- KEYS
--   meta     hash: layout
--   claim    string: known to the call
-- KEYS of each group
--   ready    list: "id:due"
--   dead     zset: id -> ms, with a text
--            that goes on
-- CONSTANTS
--   most = 7  things
--   steps = {1, 2}
-- ARGV
--   limit    number: of things
--   loud     flag: or not
--   word     text:
-- ARGV of each group
--   name     text:
-- ARGV of each thing
--   size     number: of it
--   color    text:
-- ARGV of each message
--   id       text:
--
-- Returns {"stale"}, or what follows
-- REPLY
--   now      text: ms
-- Twice: it does it twice.

`

func TestAScriptHasLocalsOfItsHeader(t *testing.T) {
	t.Parallel()
	files := luaFiles(t)
	add(files, "lua/shared/few.lua", "-- few: is for a test.\n--\n-- CONSTANTS\n--   few = 2  things\n--\n-- Defines  few\n")
	add(files, "lua/new.lua", header+"--@use few\nfor g = 1, group_count do\n  --@each group g dead name\nend\n"+
		"--@each thing few color size\n--@each message i id\n--@each group 1 ready\n")
	scripts, err := queue.Compose(files)
	require.NoError(t, err)
	require.Equal(t, `-- new
local meta, claim = KEYS[1], KEYS[2]
local limit, loud, word = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]
local most = 7
local steps = {1, 2}
local group_count = (#KEYS - 2) / 2
local first_group = 5
local first_thing = first_group + group_count * 1
local thing_count = tonumber(ARGV[4])
local first_message = first_thing + thing_count * 2
local message_count = (#ARGV - first_message + 1) / 1
local few = 2
for g = 1, group_count do
  local dead, name = KEYS[2 + g * 2], ARGV[4 + g]
end
local color, size = ARGV[first_thing + (few - 1) * 2 + 1], tonumber(ARGV[first_thing + (few - 1) * 2 + 0])
local id = ARGV[first_message + (i - 1) * 1 + 0]
local ready = KEYS[1 + 1 * 2]
`, scripts["new"])
}

func TestAHeaderThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ from, to, want string }{
		{"   claim    string: known to the call", "   claim    known to the call", `an entry of KEYS without a type`},
		{"   claim    string:", "   claim    set:", `has "claim" of type "set"`},
		{"   meta     hash:", "   meta     zset:", `has the key "meta" as a zset, and it is a hash`},
		{"   ready    list:", "   place    list:", `the key "place" of each group, which nobody knows`},
		{"   loud     flag:", "   limit    flag:", `declares "limit" twice`},
		{"   word     text:", "   claim    text:", `declares "claim" twice`},
		{"   word     text:", "   end      text:", `declares "end" twice, or it is a word of Lua`},
		{"   word     text:", "   first_thing text:", `declares "first_thing" twice`},
		{"   word     text:", "   most     text:", `declares "most" twice`},
		{"-- ARGV of each thing", "-- ARGV of each group", `has a second block of ARGV`},
		{"-- ARGV of each thing", "-- KEYS of each thing", `has a second block of KEYS`},
		{"-- ARGV of each thing", "-- ARGV for things", `has a section that nobody knows: -- ARGV for things`},
		{"   name     text:\n", "", `has nothing of each group`},
		{"   now      text:", "   now      time:", `has "now" of type "time"`},
		{"   most = 7  things", "   most: 7", `a constant without a value`},
		{"return 1", "return KEYS[1]", `uses KEYS[; its header declares names`},
		{"return 1", "return #ARGV", `uses #ARGV; its header declares names`},
		{"return 1", "--@each group g dead size", `has no "size" of each group`},
		{"return 1", "--@each crowd g dead", `has no "dead" of each crowd`},
		{"return 1", "--@each group", `has a directive that nobody knows`},
	} {
		files := luaFiles(t)
		text := header + "return 1\n"
		require.Contains(t, text, test.from)
		text = strings.Replace(text, "--"+test.from, "--"+test.to, 1)
		if test.to == "" {
			text = strings.Replace(text, "--"+test.from, "", 1)
		}
		if strings.HasPrefix(test.from, "--") || test.from == "return 1" {
			text = strings.Replace(text, test.from, test.to, 1)
		}
		add(files, "lua/new.lua", text)
		_, err := queue.Compose(files)
		require.ErrorContains(t, err, "lua/new.lua ", test.to)
		require.ErrorContains(t, err, test.want, test.to)
	}
}

// A mistake is an error of the call that names script and argument, and nothing is sent.
func TestACallNamesWhatItPasses(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		right := []any{"operation", w.keys.Operation("X"), "version", "1", "by", "id", "id", "X", "memory", time.Second, "recorded", false, "at", ""}
		on := queue.Target{Groups: []string{"a"}}
		draft := func(s *queue.Script, on queue.Target, pairs ...any) error {
			return do(ctx, w.Client, w.topic.NewCall(s, on, pairs...))
		}
		sent := w.record()
		for want, pairs := range map[string][]any{
			`script cancel: "by" is missing`:              slices.Concat(right[:4], right[6:]),
			`script cancel: "operation" is missing`:       right[2:],
			`script cancel: "by" is given twice`:          append(slices.Clone(right), "by", "name"),
			`script cancel: "operation" is given twice`:   append(slices.Clone(right), "operation", "x"),
			`script cancel: nobody knows "why"`:           append(slices.Clone(right), "why", "x"),
			`script cancel: nobody knows "meta"`:          append(slices.Clone(right), "meta", "x"),
			`script cancel: the key "operation" is empty`: append([]any{"operation", ""}, right[2:]...),
			`script cancel: an argument has no name`:      right[:5],
		} {
			err := draft(&queue.CancelScript, on, pairs...)
			require.ErrorContains(t, err, want)
			require.False(t, servers.Unreachable(err), "a repeat would be in vain")
		}
		each := func(want string, add func(d *queue.Draft)) {
			t.Helper()
			d := w.topic.Draft(&queue.MendScript, on, "version", "1", "id", "X", "half", "", "looked", true)
			add(d)
			require.ErrorContains(t, do(ctx, w.Client, d.Call()), "script mend: "+want)
		}
		each("no group has arguments", func(*queue.Draft) {})
		each("2 of 1 groups have arguments", func(d *queue.Draft) {
			for range 2 {
				d.Each("group", "seen", "", "returned", "", "last", "", "length", 0)
			}
		})
		each(`"last" of each group is given twice`, func(d *queue.Draft) { d.Each("group", "last", "", "returned", "", "last", "", "length", 0) })
		each(`nobody knows "at" of each group`, func(d *queue.Draft) { d.Each("group", "at", "", "returned", "", "last", "", "length", 0) })
		each(`each group has 2 names and values, not 8`, func(d *queue.Draft) { d.Each("group", "seen", "") })
		each(`there is no block of each message`, func(d *queue.Draft) { d.Each("message", "id", "") })
		require.Empty(t, sent.take(), "nothing is sent")

		// The order of names does not matter.
		slices.Reverse(right)
		for i := 0; i < len(right); i += 2 {
			right[i], right[i+1] = right[i+1], right[i]
		}
		require.NoError(t, draft(&queue.CancelScript, on, right...))
		require.Len(t, sent.take(), 1)
	}, "a")
}

// The text of a group's options is read in Lua and in Go. Both agree, whatever is stored.
func TestGroupOptionsAreReadTheSameInLuaAndInGo(t *testing.T) {
	files := luaFiles(t)
	add(files, "lua/options.lua", "-- options: is for a test.\n--\n-- KEYS\n--   meta  hash: layout\n-- ARGV\n--   given  text:\n\n"+
		"--@use group_options\nlocal o = read_options(given)\n"+
		"return string.format('%d %d %d ', o.max_deliveries, o.retention, o.max_dead) .. tostring(o.single)\n")
	scripts, err := queue.Compose(files)
	require.NoError(t, err)
	both(t, func(t *testing.T, w *world) {
		read := func(text string) string {
			said, err := w.Client.Eval(ctx, scripts["options"], []string{w.keys.Meta()}, text).Text()
			require.NoError(t, err)
			return said
		}
		for text, want := range map[string]queue.GroupOptions{ // as they are stored
			"25 2592000000 -1":      {MaxDeliveries: 25, Retention: 30 * 24 * time.Hour},
			"-1 -1 -1":              {MaxDeliveries: -1, Retention: -1},
			"3 0 9 single":          {MaxDeliveries: 3, MaxDead: 9, SingleActive: true},
			"5 1000 100 other:7":    {MaxDeliveries: 5, Retention: time.Second, MaxDead: 100},
			"5 1000 100 x:7 single": {MaxDeliveries: 5, Retention: time.Second, MaxDead: 100, SingleActive: true},
			"5 1000 100 singles":    {MaxDeliveries: 5, Retention: time.Second, MaxDead: 100},
			"5 1000 single":         {MaxDeliveries: 5, Retention: time.Second},
			"5 1000":                {MaxDeliveries: 5, Retention: time.Second},
			"-5 0x10 1e3 single":    {MaxDeliveries: -1, Retention: -1, SingleActive: true},
			"x y z":                 {MaxDeliveries: -1, Retention: -1},
			"":                      {MaxDeliveries: -1, Retention: -1},
		} {
			o := queue.ParseGroupOptions(text)
			require.Equal(t, want, o, text)
			dead := o.MaxDead
			if dead == 0 {
				dead = -1
			}
			retention := o.Retention.Milliseconds()
			if o.Retention < 0 {
				retention = -1
			}
			require.Equal(t, fmt.Sprint(o.MaxDeliveries, " ", retention, " ", dead, " ", o.SingleActive), read(text), text)
		}
		require.NoError(t, w.topic.Register(ctx, "g", queue.GroupOptions{MaxDeliveries: 25, Retention: 30 * 24 * time.Hour}))
		require.Equal(t, "25 2592000000 -1", w.Client.HGet(ctx, w.keys.Groups(), "g").Val())
		require.NoError(t, w.topic.Register(ctx, "h", queue.GroupOptions{MaxDeliveries: 3, MaxDead: 9, SingleActive: true}))
		require.Equal(t, "3 0 9 single", w.Client.HGet(ctx, w.keys.Groups(), "h").Val())
	})
}

// Lua and Go both have these numbers.
func TestLuaAndGoComputeTheSame(t *testing.T) {
	require.Equal(t, queue.KillScript.Constant("id_length"), queue.IDLength)
	require.EqualValues(t, queue.Polled, queue.SignValid.Milliseconds())
	files := luaFiles(t)
	claim := string(files["lua/claim.lua"].Data)
	rule := regexp.MustCompile(`(?s)\nlocal function company\(.*?\nend\n`).FindString(claim)
	require.NotEmpty(t, rule)
	add(files, "lua/company.lua", "-- company: is for a test.\n--\n-- KEYS\n--   meta  hash: layout\n-- ARGV\n--   most      number:\n--   expiries  number:\n"+
		rule+"return string.format('%.0f', math.min(company(expiries), 2 ^ 31 - 1))\n")
	scripts, err := queue.Compose(files)
	require.NoError(t, err)
	both(t, func(t *testing.T, w *world) {
		for _, most := range []int{1, 2, 3, 7, 256, 1000} {
			for _, expiries := range []int{0, 1, 2, 3, 9, 64, 1000} {
				said, err := w.Client.Eval(ctx, scripts["company"], []string{w.keys.Meta()}, most, expiries).Int()
				require.NoError(t, err)
				l := queue.Leased{Expiries: expiries}
				require.Equal(t, min(l.Company(most), math.MaxInt32), said, "most %d, expiries %d", most, expiries)
			}
		}
	})
}

// All keys of a call are in one slot, also those that a topic does not have.
func TestEachCallIsInOneSlot(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		calls := w.record()
		w.publishNow("x")
		w.sub("a").claim(1)
		w.promote("scheduler|1")
		require.Error(t, w.topic.Cancel(ctx, operate.Ref{ID: w.id["x"]}))
		require.NoError(t, w.topic.Erase(ctx))
		for _, call := range calls.take() {
			for _, key := range keysOf(call) {
				require.Equal(t, slotOf(w.keys.Meta()), slotOf(key), key)
				require.NotEmpty(t, key)
			}
		}
	}, "a")
}
