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

func isText(part any) bool { _, ok := part.(string); return ok }

// isFields checks a list of texts.
func isFields(part any) bool {
	list, ok := part.([]any)
	return ok && !slices.ContainsFunc(list, func(one any) bool { return !isText(one) })
}

// isScore tells whether a text is the score of a member of a sorted set.
func isScore(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	return err == nil && !math.IsNaN(f)
}

// readPage reads the reply of the page script, for a page of a state of a group in a key of a kind,
// from a score on.
func readPage(reply []any, group, state, kind, score string) (Page, error) {
	read, err := queue.PageScript.Read(reply)
	if err != nil {
		return Page{}, err
	}
	var page Page
	var last string
	looked, from := 0, 0
	if kind == "list" {
		from, _ = strconv.Atoi(score) // "" is 0
	}
	for _, part := range read.Each() {
		id, score := part.Text("id"), part.Text("score")
		if kind == "zset" && !isScore(score) {
			return Page{}, fmt.Errorf("page: message %.64q has the score %.64q", id, score)
		}
		last, looked = score+":"+id, looked+1
		if id == nobody {
			continue
		}
		m := Listed{Stored: Stored{ID: id, Options: queue.ParseOptions(part.Text("options"))}, Next: last,
			Place: Place{Group: group, State: state, At: queue.Instant(score), Token: part.Text("token")}, Own: part.Text("options"), Free: part.Text("free")}
		if kind == "list" {
			m.Next = strconv.Itoa(from + looked)
		}
		if body, there := part.Part("body").(string); there {
			m.Body = []byte(body)
		}
		if state != Waiting {
			m.Text = part.Text("record")
			m.Record = queue.ReadRecord(m.Text)
		}
		page.Messages = append(page.Messages, m)
	}
	if read.Flag("more") {
		if looked == 0 {
			return Page{}, errors.New("page: there are more messages, and none is in the reply")
		}
		page.Next = last
		if kind == "list" {
			page.Next = strconv.Itoa(from + looked)
		}
	}
	return page, nil
}

// readScan reads the reply of the scan script: the next cursor, and the IDs.
func readScan(reply []any) (next string, found []string, err error) {
	read, err := queue.ScanScript.Read(reply)
	if err != nil {
		return "", nil, err
	}
	next = read.Text("next")
	if _, err := strconv.ParseUint(next, 10, 64); err != nil {
		return "", nil, fmt.Errorf("scan: the cursor is %.64q", next)
	}
	for _, one := range read.Each() {
		found = append(found, one.Text("id"))
	}
	return next, found, nil
}

// readUpcoming reads the reply of the upcoming script about n spans of time.
func readUpcoming(reply []any, n int) (queue.Reply, error) {
	read, err := queue.UpcomingScript.Read(reply)
	switch {
	case err != nil:
	case len(read.Each()) != n:
		err = fmt.Errorf("upcoming: unexpected reply of %d parts about %d spans", len(reply), n)
	case read.Time("begins").IsZero():
		err = fmt.Errorf("upcoming: the spans begin at %.64q", read.Text("begins"))
	}
	return read, err
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
