package operate

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// parts makes a reply of a text: a line for each part, ":" before a number, "-" for nothing, "*"
// before a list, with spaces between its parts.
func parts(text string) (reply []any) {
	for line := range strings.SplitSeq(text, "\n") {
		n, err := strconv.ParseInt(strings.TrimPrefix(line, ":"), 10, 64)
		switch {
		case strings.HasPrefix(line, ":") && err == nil:
			reply = append(reply, n)
		case line == "-":
			reply = append(reply, nil)
		case strings.HasPrefix(line, "*"):
			list := []any{}
			for _, part := range strings.Fields(line[1:]) {
				list = append(list, part)
			}
			reply = append(reply, list)
		default:
			reply = append(reply, line)
		}
	}
	return reply
}

// A reply that cannot be read is an error that begins with the script's name, and brings nothing.
func checkRefusal(t *testing.T, script string, err error, brought int) {
	t.Helper()
	if !strings.HasPrefix(err.Error(), script+": ") || brought > 0 {
		t.Errorf("%d, and %v", brought, err)
	}
}

func FuzzPages(f *testing.F) {
	const id = "01M7Y3SQGNBVX5P66MY8JV56FH"
	f.Add(":1\n"+id+"\n1795233210078\nbody\nmax_deliveries:3\n1 s -\nS:1:2:3", "zset", "")
	f.Add(":1\n"+id+"\n1795233210078\n\n\n2 r 30s why\n", "list", "5")
	f.Add(":1\n"+id+"\n1795233210078\n-\nmax_deliveries:3\n2 r 30s why\n", "zset", "")
	f.Add(":1\n"+id+"\n1795233210078\nbody\n-\n-\n", "zset", "")
	f.Add(":0\n"+nobody+"\n1\n\n\n\n", "list", "")
	f.Add(":1\n"+id+"\nNaN\n\n\n\n", "zset", "1:a")
	f.Add(":1", "zset", "")
	f.Add(":1", "list", "7")
	f.Add(":1\n-\n:1\n*\n-\n-\n-", "list", "")
	f.Add("stale", "list", "")
	f.Fuzz(func(t *testing.T, text, kind, cursor string) {
		if kind != "list" {
			kind = "zset"
		}
		score, _, err := parseCursor(kind, cursor)
		if err != nil {
			return
		}
		reply := parts(text)
		for _, state := range []string{Waiting, Dead} {
			page, err := readPage(reply, "a", state, kind, score)
			if err != nil {
				checkRefusal(t, "page", err, len(page.Messages))
				continue
			}
			if len(page.Messages) > len(reply)/6 {
				t.Errorf("%q brings %d messages", reply, len(page.Messages))
			}
			for _, m := range page.Messages {
				var body any // none, which is another than an empty one
				if m.Body != nil {
					body = string(m.Body)
				}
				if !slices.Contains(reply, any(m.ID)) || !slices.Contains(reply, body) {
					t.Errorf("%q is read as %+v", reply, m)
				}
			}
			// The next page begins further on, and its cursor can be read.
			next, _, err := parseCursor(kind, page.Next)
			if err != nil {
				t.Errorf("%q is read as a page that ends at %q: %v", reply, page.Next, err)
			}
			if from, _ := strconv.Atoi(score); kind == "list" && page.Next != "" && next <= strconv.Itoa(from) && len(next) <= len(strconv.Itoa(from)) {
				t.Errorf("a page from %q on ends at %q", cursor, page.Next)
			}
		}
	})
}

func FuzzUpcoming(f *testing.F) {
	f.Add("1795233210078\n:1\n:2\n:3\n:4", 2)
	f.Add("1795233210078\n:1\n:2\n:3\n:4\n:0\n:0\n:0\n:0", 4)
	f.Add("NaN\n:1\n:2", 1)
	f.Add("x\n:1\n2", 1)
	f.Add("1e300\n:1\n:2", 1)
	f.Add("", 0)
	f.Fuzz(func(t *testing.T, text string, n int) {
		n = max(min(n, 1000), 1) // as Upcoming is called
		reply := parts(text)
		read, err := readUpcoming(reply, n)
		if err != nil {
			checkRefusal(t, "upcoming", err, 0)
			return
		}
		for i, s := range read.Each() {
			if any(int64(s.Number("waiting"))) != reply[1+2*i] || any(int64(s.Number("retrying"))) != reply[2+2*i] {
				t.Errorf("%q is read as %+v", reply, read)
			}
		}
	})
}

func FuzzStats(f *testing.F) {
	const head = "ok\n1795233210078\n:5\n:1\n1795233210079\n:1\n1795233210079\nholder|1\nstandby|2\n1795233219999\n\n\n*published 7"
	const group = "\n:1\nid:1795233210078\n:1\n1795233210090\n:1\n1795233210080\n:1\n1795233210000\n:1\n:0\n\n25 2592000000 9\n\n:1\n:1\n*late_5 7 acked 120 latest_ms 30 seen 1795233210000 dead_lease 3"
	f.Add(head, uint8(0))
	f.Add(head+group+group, uint8(2))
	f.Add(strings.ReplaceAll(head+group, "1795233210078", "NaN"), uint8(1))
	f.Add(strings.ReplaceAll(head+group, "25 2592000000 9", "x 99999999999999999999 -7"), uint8(1))
	f.Add(strings.ReplaceAll(head+group, "25 2592000000 9", ""), uint8(1))
	f.Add(strings.ReplaceAll(head+group, "120", "1e300"), uint8(1))
	f.Add(strings.ReplaceAll(head+group, "120", "-120"), uint8(1))
	f.Add(strings.ReplaceAll(head+group, ":1\n*", "7\n*"), uint8(1))
	f.Add(strings.ReplaceAll(head+group, ":5", "-"), uint8(1))
	f.Add("stale", uint8(3))
	f.Add("", uint8(0))
	f.Fuzz(func(t *testing.T, text string, groups uint8) {
		set := &queue.Groups{}
		for i := range groups % 4 {
			set.Names = append(set.Names, strconv.Itoa(int(i)))
		}
		reply := parts(text)
		counts, err := ReadCounts(reply, set)
		switch {
		case err == queue.ErrStale:
			if len(reply) != 1 || reply[0] != "stale" {
				t.Errorf("%q is read as stale", reply)
			}
			return
		case err != nil:
			checkRefusal(t, "stats", err, len(counts.Groups))
			return
		}
		if len(counts.Groups) != len(set.Names) || counts.Now.IsZero() || any(int64(counts.Number("messages"))) != reply[2] || counts.Counter("published") < 0 {
			t.Errorf("%q is read as %+v", reply, counts)
		}
		_, _ = counts.Holder(), counts.Standby()
		for _, g := range counts.Groups {
			latest, _ := g.Latest(counts.Now)
			o := g.Options()
			if g.Lateness()[2] < 0 || g.Counter("acked") < 0 || latest < 0 || o.Retention < -1 || o.MaxDead < 0 {
				t.Errorf("%q is read as %+v", reply, g)
			}
		}
	})
}

func FuzzScans(f *testing.F) {
	f.Add("0\nid\nanother")
	f.Add("18446744073709551615")
	f.Add("x\nid")
	f.Add("0\n-")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		reply := parts(text)
		next, found, err := readScan(reply)
		if err != nil {
			checkRefusal(t, "scan", err, len(found)+len(next))
			return
		}
		again := []any{next}
		for _, id := range found {
			again = append(again, id)
		}
		if !reflect.DeepEqual(again, reply) {
			t.Errorf("%q is read as %q and %q", reply, next, found)
		}
	})
}

func FuzzPassing(f *testing.F) {
	const id = "01M7Y3SQGNBVX5P66MY8JV56FH"
	f.Add("1795233210078\n7\n1\n:5\n" + id + ":1795233210078\nbody\nmax_deliveries:3\n" + id + ":1795233210077\n-\n")
	f.Add("stale")
	f.Add("1795233210078\n7\n1\n:5")
	f.Add("\n7\n1\n:5")
	f.Add("1795233210078\n7\n1\n5")
	f.Add("1795233210078\n7\n1\n:5\n" + id + "\nbody\n")
	f.Fuzz(func(t *testing.T, text string) {
		seen, err := readPassing(parts(text))
		switch {
		case err == queue.ErrStale:
		case err != nil:
			checkRefusal(t, "passing", err, len(seen.Messages))
		case seen.Now.IsZero():
			t.Error("there is no time")
		}
		for i, m := range seen.Messages {
			if m.Due.IsZero() || i > 0 && m.Due.Before(seen.Messages[i-1].Due) {
				t.Errorf("message %d is due at %v", i, m.Due)
			}
		}
	})
}
