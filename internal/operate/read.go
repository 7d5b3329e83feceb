package operate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// This file reads what scripts answer about a topic. A reply that the script cannot have written is
// an error. A value that was changed in Redis by hand, and that is no number where one is
// expected, is read as none.

// isText, isTextOrNone and isNumber check one part of a reply.
func isText(part any) bool { _, ok := part.(string); return ok }

func isTextOrNone(part any) bool { return part == nil || isText(part) }

func isNumber(part any) bool { _, ok := part.(int64); return ok }

// isFields checks a list of texts.
func isFields(part any) bool {
	list, ok := part.([]any)
	return ok && !slices.ContainsFunc(list, func(one any) bool { return !isText(one) })
}

// readFields returns the values of a list of fields and values, by field.
func readFields(part any) map[string]any {
	list, _ := part.([]any)
	fields := make(map[string]any, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		fields[queue.Text(list[i])] = list[i+1]
	}
	return fields
}

// checkParts returns an error that names the first part of a wrong type.
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

// readPage reads the reply of the page script, for a page of a state in a key of a kind, from a
// score on.
func readPage(reply []any, state State, kind, score string) (Page, error) {
	const each = 6
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
		id, score := queue.Text(part[0]), queue.Text(part[1])
		if kind == "zset" && !isScore(score) {
			return Page{}, fmt.Errorf("page: message %.64q has the score %.64q", id, score)
		}
		last, looked = score+":"+id, looked+1
		if id == nobody {
			continue
		}
		m := Listed{ID: id, At: queue.Instant(score), Since: queue.LeasedAt(queue.Text(part[5])), Options: queue.ParseOptions(queue.Text(part[3]))}
		if body, there := part[2].(string); there {
			m.Body = []byte(body)
		}
		if state != Pending {
			r := queue.ReadRecord(queue.Text(part[4]))
			m.Deliveries, m.Delivered, m.Reason = r.Count, r.Delivered(), r.Reason
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

// readScan reads the reply of the scan script: the next cursor, and the IDs.
func readScan(reply []any) (next string, found []string, err error) {
	if len(reply) == 0 {
		return "", nil, errors.New("scan: unexpected reply without a cursor")
	}
	if err := checkParts("scan", reply, func(int) func(any) bool { return isText }); err != nil {
		return "", nil, err
	}
	if _, err := strconv.ParseUint(queue.Text(reply[0]), 10, 64); err != nil {
		return "", nil, fmt.Errorf("scan: the cursor is %.64q", queue.Text(reply[0]))
	}
	for _, part := range reply[1:] {
		found = append(found, queue.Text(part))
	}
	return queue.Text(reply[0]), found, nil
}

// readUpcoming reads the reply of the upcoming script about n spans of time.
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
	first := queue.Instant(queue.Text(reply[0]))
	if first.IsZero() {
		return nil, fmt.Errorf("upcoming: the spans begin at %.64q", queue.Text(reply[0]))
	}
	buckets := make([]Bucket, n)
	for i := range buckets {
		buckets[i] = Bucket{
			// A Duration might overflow.
			From:    time.UnixMilli(first.UnixMilli() + int64(i)*queue.CeilMillis(width)),
			Pending: count(reply[1+2*i]),
			Retries: count(reply[2+2*i]),
		}
	}
	return buckets, nil
}

// number reads a part of a reply that is a number or the text of one. It returns 0 for any other
// part.
func number(part any) int64 {
	switch n := part.(type) {
	case int64:
		return n
	case string:
		f, err := strconv.ParseFloat(n, 64)
		if err != nil || math.IsNaN(f) {
			return 0
		}
		return int64(min(max(f, -queue.Most), queue.Most))
	}
	return 0
}

// count is number for a number of things.
func count(part any) int { return int(min(max(number(part), math.MinInt), math.MaxInt)) }

// inMillis is number for a duration in milliseconds.
func inMillis(part any) time.Duration {
	return time.Duration(min(max(number(part), 0), math.MaxInt64/1_000_000)) * time.Millisecond
}
