package queue

import (
	"errors"
	"fmt"
	"math"
	"strconv"
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
