package queue

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Data in Redis may have been changed by hand. Nothing read there ends the process. The program
// reads its own data as it wrote them.

func FuzzOptions(f *testing.F) {
	f.Add("", 0, "", int64(0), uint8(0))
	f.Add("max_deliveries:3 delay_id:a%20b window:5 mode:keep", 3, "a b:c", int64(5), uint8(1))
	f.Add("delay_id:%zz mode: window:x :", -7, "%", int64(-1), uint8(2))
	f.Fuzz(func(t *testing.T, text string, deliveries int, delayID string, window int64, mode uint8) {
		_ = ParseOptions(text)
		want := Options{MaxDeliveries: max(deliveries, -1), DelayID: delayID}
		if delayID != "" {
			want.Window = time.Duration(max(window, 0) % (1 << 40)).Truncate(time.Millisecond)
			want.Mode = []Mode{Replace, Keep, Reject}[mode%3]
		}
		encoded := want.encode()
		if got := ParseOptions(encoded); got != want {
			t.Errorf("%+v is written as %q and read as %+v", want, encoded, got)
		}
		// Scripts find the values by these patterns.
		for part := range strings.SplitSeq(encoded, " ") {
			if name, value, ok := strings.Cut(part, ":"); encoded != "" && (!ok || name == "" || strings.ContainsAny(value, ": \t\n")) {
				t.Errorf("%+v is written as %q", want, encoded)
			}
		}
	})
}

func FuzzExpiries(f *testing.F) {
	f.Add("", int64(0), int64(0), false)
	f.Add("expires_at:1700000000000 max_lateness:5 on_expiry:dead", int64(1_700_000_000_000), int64(5), true)
	f.Add("expires_at:x max_lateness:-1 on_expiry:", int64(1), int64(1), false)
	f.Fuzz(func(t *testing.T, text string, at, lateness int64, dead bool) {
		_ = ParseOptions(text)
		want := Options{Expiry: Expiry{Lateness: time.Duration(max(lateness, 0)%(1<<40)) * time.Millisecond}}
		if at > 0 {
			want.Expiry.At = time.UnixMilli(1 + at%(1<<50))
		}
		want.Expiry.Dead = dead && want.Expiry != Expiry{} // it has to be there to be dead
		encoded := want.encode()
		if got := ParseOptions(encoded); got != want {
			t.Errorf("%+v is written as %q and read as %+v", want, encoded, got)
		}
	})
}

func FuzzDelayIDs(f *testing.F) {
	for _, id := range []string{"", "a", "a b", "a:b", "%", "%20", "+", "\x00", "ü", "\xff", "\n"} {
		f.Add(id, id)
	}
	f.Fuzz(func(t *testing.T, id, other string) {
		_ = DecodeName(other)
		stored := EncodeName(id)
		if DecodeName(stored) != id {
			t.Errorf("%q is stored as %q and read as %q", id, stored, DecodeName(stored))
		}
		if strings.ContainsAny(stored, ": \t\r\n\x00") {
			t.Errorf("%q is stored as %q", id, stored)
		}
		if (id == other) != (stored == EncodeName(other)) {
			t.Errorf("%q and %q are both stored as %q", id, other, stored)
		}
	})
}

func FuzzRecords(f *testing.F) {
	for _, text := range []string{"", "1", "1 e", "2 r 30s", "3 - - nacked on the last of 3 deliveries", "x y z  ", " ", "-1 e", "99999999999999999999 -"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := ReadRecord(text)
		if strings.Contains(r.flag, " ") || strings.Contains(r.DelayedFor, " ") {
			t.Errorf("%q is read as %+v", text, r)
		}
		if r.requeued() && !r.Delivered() {
			t.Errorf("%q was requeued and never delivered", text)
		}
	})
}

// replied is a call that was answered.
func replied(reply ...any) *Call {
	cmd := redis.NewCmd(context.Background())
	cmd.SetVal(reply)
	return &Call{cmd: cmd}
}

func FuzzClaims(f *testing.F) {
	f.Add(14, "01M7Y3SQGNBVX5P66MY8JV56FH:1795233210078", "body", "1 d -", "1795233210078", int64(1), true, true)
	f.Add(14, "id", "", "", "", int64(-1), false, false)
	f.Add(1, ":", "x", "x", "NaN", int64(0), true, true)
	f.Add(14, "a:1 b:2 c:3", "body", "", "1", int64(3), true, false)
	f.Add(14, "a:1 b:2 c:3", "body", "", "1", int64(2), true, false)
	f.Add(14, "a:1 b:2", "body", "", "1", int64(3), true, true)
	f.Add(14, "a:1", "", "", "1", int64(1), false, false)
	f.Add(14, "a:1 ", "body", "", "1", int64(2), true, false)
	f.Add(14, "a:1 b:1 c:2 d:1", "body", "", "1", int64(3), true, false)
	f.Add(14, "id", "body", "", "1", int64(0), true, false)
	f.Add(14, "id:", "body", "", "1", int64(0), true, false)
	f.Add(14, "", "body", "", "1", int64(0), true, false)
	f.Fuzz(func(t *testing.T, parts int, entries, body, record, now string, orphans int64, bodies, records bool) {
		list := func(there bool, part any) []any {
			if !there {
				return nil
			}
			return slices.Repeat([]any{part}, 1+int(uint64(orphans)%4))
		}
		reply := []any{"ok", int64(1), int64(0), now, orphans, entries, list(bodies, body), list(records, record), now, list(records, orphans), "7", "0", int64(0), ""}
		reply = reply[:min(max(parts, 0), len(reply))]
		claimed, err := Claim{Subscription: "S", Number: 1}.ReadClaim(replied(reply...).cmd)
		if err != nil {
			if len(claimed.Messages) > 0 {
				t.Errorf("%q brought messages, and %v", reply, err)
			}
			return
		}
		var read []string
		for _, m := range claimed.Messages {
			due, ofS := strings.CutPrefix(m.Token, "S:1:7:")
			ms, err := strconv.ParseInt(due, 10, 64)
			if string(m.Body) != body || !ofS || err != nil || m.Due.UnixMilli() != ms {
				t.Errorf("%q is read as %+v", reply, m)
			}
			read = append(read, m.ID+strings.TrimPrefix(m.Token, "S:1:7"))
		}
		if len(reply) == 14 && (len(read) != len(list(bodies, body)) || strings.Join(read, " ") != entries) {
			t.Errorf("%q is read as %q", reply, read)
		}
	})
}

func FuzzTurns(f *testing.F) {
	f.Add(5, "holder", "1500", int64(1), "group")
	f.Add(5, "", "", int64(0), "")
	f.Add(1, "standby", "x", int64(2), "")
	f.Add(5, "holder", "-9223372036854775808", int64(1), "")
	f.Fuzz(func(t *testing.T, parts int, role, wait string, flag int64, unused string) {
		reply := []any{role, wait, flag, flag, []any{unused, flag}}
		if unused == "" {
			reply[4] = unused // which is no list
		}
		topic := NewTopic(new(servers.Client), "p", "t")
		turn, stale, err := topic.ReadTurn(replied(reply[:min(max(parts, 0), 5)]...), &Groups{})
		if err == nil && !stale && turn.Wait < -1 {
			t.Errorf("%q is read as %+v", reply, turn)
		}
	})
}
