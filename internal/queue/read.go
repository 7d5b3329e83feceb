package queue

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What scripts answer about a topic. A reply of another form than the script's is an error; what was changed in Redis
// by hand, and is no number where there should be one, is read as none.

// isText, isTextOrNone and isNumber check the parts of a reply.
func isText(part any) bool { _, ok := part.(string); return ok }

func isTextOrNone(part any) bool { return part == nil || isText(part) }

func isNumber(part any) bool { _, ok := part.(int64); return ok }

// checkParts tells which of the parts is not what it should be.
func checkParts(script string, parts []any, is func(i int) func(any) bool) error {
	for i, part := range parts {
		if !is(i)(part) {
			return fmt.Errorf("%s: unexpected reply: part %d of %d is %.64q, a %T", script, i+1, len(parts), fmt.Sprint(part), part)
		}
	}
	return nil
}

// isScore tells whether a text is the score of a member of a sorted set.
func isScore(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	return err == nil && !math.IsNaN(f)
}

// readPage reads what page answers for a page of a state, in a key of a kind, from a score on.
func readPage(reply []any, state State, kind, score string) (Page, error) {
	const each = 5
	if len(reply)%each != 1 {
		return Page{}, fmt.Errorf("page: unexpected reply of %d parts", len(reply))
	}
	err := checkParts("page", reply, func(i int) func(any) bool {
		switch {
		case i == 0:
			return isNumber
		case i%each == 3:
			return isTextOrNone
		}
		return isText
	})
	if err != nil {
		return Page{}, err
	}
	var page Page
	var last string
	looked := 0
	for part := reply[1:]; len(part) > 0; part = part[each:] {
		id, score := text(part[0]), text(part[1])
		if kind == "zset" && !isScore(score) {
			return Page{}, fmt.Errorf("page: message %.64q has the score %.64q", id, score)
		}
		last, looked = score+":"+id, looked+1
		if id == nobody {
			continue
		}
		m := Listed{ID: id, At: instant(score), Options: parseOptions(text(part[3]))}
		if body, there := part[2].(string); there {
			m.Body = []byte(body)
		}
		if state != Pending {
			var r record
			r.parse(text(part[4]))
			m.Deliveries, m.Delivered, m.Reason = r.count, r.delivered(), r.reason
		}
		page.Messages = append(page.Messages, m)
	}
	if reply[0] == int64(1) {
		if looked == 0 {
			return Page{}, errors.New("page: there are more messages, and none is in the reply")
		}
		page.Next = last
		if kind == "list" {
			from, _ := strconv.Atoi(score)
			page.Next = strconv.Itoa(from + looked)
		}
	}
	return page, nil
}

// readScan reads what scan answers: where to go on, and what was found.
func readScan(reply []any) (next string, found []string, err error) {
	if len(reply) == 0 {
		return "", nil, errors.New("scan: unexpected reply without a cursor")
	}
	if err := checkParts("scan", reply, func(int) func(any) bool { return isText }); err != nil {
		return "", nil, err
	}
	if _, err := strconv.ParseUint(text(reply[0]), 10, 64); err != nil {
		return "", nil, fmt.Errorf("scan: the cursor is %.64q", text(reply[0]))
	}
	for _, part := range reply[1:] {
		found = append(found, text(part))
	}
	return text(reply[0]), found, nil
}

// readUpcoming reads what upcoming answers about n spans of time.
func readUpcoming(reply []any, width time.Duration, n int) ([]Bucket, error) {
	if len(reply) != 1+2*n {
		return nil, fmt.Errorf("upcoming: unexpected reply of %d parts about %d spans", len(reply), n)
	}
	err := checkParts("upcoming", reply, func(i int) func(any) bool {
		if i == 0 {
			return isText
		}
		return isNumber
	})
	if err != nil {
		return nil, err
	}
	first := instant(text(reply[0]))
	if first.IsZero() {
		return nil, fmt.Errorf("upcoming: the spans begin at %.64q", text(reply[0]))
	}
	buckets := make([]Bucket, n)
	for i := range buckets {
		buckets[i] = Bucket{
			From:    time.UnixMilli(first.UnixMilli() + int64(i)*ceilMillis(width)), // which is more than a Duration can be
			Pending: count(reply[1+2*i]),
			Retries: count(reply[2+2*i]),
		}
	}
	return buckets, nil
}

// readStats reads what stats answers about a topic with these groups; errStale if it has others by now.
func readStats(reply []any, groups *Groups) (stats Stats, err error) {
	if len(reply) == 1 && reply[0] == "stale" {
		return stats, errStale
	}
	const head, each = 11, 19
	if len(reply) != head+each*len(groups.Names) {
		return stats, fmt.Errorf("stats: unexpected reply of %d parts about %d groups", len(reply), len(groups.Names))
	}
	err = checkParts("stats", reply, func(i int) func(any) bool {
		counts := []int{2, 3, 5}
		if i >= head {
			i, counts = (i-head)%each, []int{0, 2, 4, 6, 8, 9, 13}
		}
		if slices.Contains(counts, i) {
			return isNumber
		}
		return isText
	})
	if err != nil {
		return stats, err
	}
	stats = Stats{Now: instant(text(reply[1])), Messages: count(reply[2]), Pending: count(reply[3]),
		NextDue: instant(text(reply[4])), DelayIDs: count(reply[5]), Next: instant(text(reply[6])),
		Paused: instant(text(reply[10])), Stream: groups.Stream}
	if stats.Now.IsZero() {
		return Stats{}, fmt.Errorf("stats: the server says that it is %.64q", text(reply[1]))
	}
	if stats.Next.IsZero() || !stats.Now.After(stats.Next.Add(grace)) { // else the lease has ended
		stats.Holder = text(reply[7])
	}
	if !stats.Now.After(instant(text(reply[9]))) {
		stats.Standby = text(reply[8])
	}
	for i, name := range groups.Names {
		stats.Groups = append(stats.Groups, readGroupStats(name, reply[head+each*i:]))
	}
	slices.SortFunc(stats.Groups, func(a, b GroupStats) int { return strings.Compare(a.Name, b.Name) })
	return stats, nil
}

func readGroupStats(name string, r []any) GroupStats {
	g := GroupStats{Name: name, Ready: count(r[0]), Unack: count(r[2]), NextLease: instant(text(r[3])),
		Retry: count(r[4]), NextRetry: instant(text(r[5])), Dead: count(r[6]), OldestDead: instant(text(r[7])),
		Waiters: count(r[8]), Resting: count(r[9]), Paused: instant(text(r[10])), Ends: instant(text(r[12])),
		Held: count(r[13]), Delivered: count(r[14]), Dropped: count(r[17]), Seen: instant(text(r[18])),
		LatenessMillis: number(r[15]), Latest: inMillis(r[16])}
	if _, due, ok := strings.Cut(text(r[1]), ":"); ok {
		g.OldestDue = instant(due)
	}
	limit, retention, _ := strings.Cut(text(r[11]), " ")
	g.MaxDeliveries, _ = strconv.Atoi(limit)
	g.Retention = -1
	if ms, err := strconv.ParseInt(retention, 10, 64); err == nil && ms >= 0 {
		g.Retention = time.Duration(min(ms, math.MaxInt64/1_000_000)) * time.Millisecond
	}
	return g
}

// text is a part of a reply that is a text, or "".
func text(part any) string {
	s, _ := part.(string)
	return s
}

// most is the largest number that Lua and scores have exactly, and so as much as any that is read.
const most = 1 << 53

// number is a part of a reply that is one, as a number or a text, or 0.
func number(part any) int64 {
	switch n := part.(type) {
	case int64:
		return n
	case string:
		f, err := strconv.ParseFloat(n, 64)
		if err != nil || math.IsNaN(f) {
			return 0
		}
		return int64(min(max(f, -most), most))
	}
	return 0
}

// count is a part of a reply that is a number of things, or 0.
func count(part any) int { return int(min(max(number(part), math.MinInt), math.MaxInt)) }

// inMillis is a part of a reply that is a duration in ms, or 0.
func inMillis(part any) time.Duration {
	return time.Duration(min(max(number(part), 0), math.MaxInt64/1_000_000)) * time.Millisecond
}

// instant is a time in ms, or zero for none.
func instant(ms string) time.Time {
	f, err := strconv.ParseFloat(ms, 64)
	if ms == "" || err != nil || math.IsNaN(f) {
		return time.Time{}
	}
	return time.UnixMilli(int64(min(max(f, -most), most)))
}
