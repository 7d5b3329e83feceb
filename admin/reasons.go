package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// DeadReasons is why the dead letters of a group are dead.
type DeadReasons struct {
	Reasons []DeadReason `json:"reasons"` // the most frequent first
	Other   int          `json:"other"`   // dead letters of further reasons, after 1,000
	Looked  int          `json:"looked"`  // dead letters that were examined

	// Begin and End are what all reasons begin and end with, if there are several. They may be said
	// once: see Short.
	Begin string `json:"begin,omitempty"`
	End   string `json:"end,omitempty"`
}

// Short returns a reason with "…" for what all of them begin and end with. Filter.Reason takes it.
func (d DeadReasons) Short(r DeadReason) string {
	text, begin, end := r.Reason, "", ""
	if d.Begin != "" {
		text, begin = strings.TrimPrefix(text, d.Begin), "…"
	}
	if d.End != "" {
		text, end = strings.TrimSuffix(text, d.End), "…"
	}
	return begin + text + end
}

// Shared says what all reasons begin and end with, "" if that is nothing.
func (d DeadReasons) Shared() string {
	switch {
	case d.Begin != "" && d.End != "":
		return fmt.Sprintf("All begin with %q, and end with %q.", d.Begin, d.End)
	case d.Begin != "":
		return fmt.Sprintf("All begin with %q.", d.Begin)
	case d.End != "":
		return fmt.Sprintf("All end with %q.", d.End)
	}
	return ""
}

// sharedLeast is how long a text has to be to be said once, in bytes.
const sharedLeast = 12

// share finds what all reasons begin and end with, in whole words.
func (d *DeadReasons) share() {
	d.Begin, d.End = "", ""
	if len(d.Reasons) < 2 {
		return
	}
	begin, end := d.Reasons[0].Reason, d.Reasons[0].Reason
	shortest := len(begin)
	for _, r := range d.Reasons[1:] {
		shortest = min(shortest, len(r.Reason))
		for !strings.HasPrefix(r.Reason, begin) {
			begin = begin[:len(begin)-1]
		}
		for !strings.HasSuffix(r.Reason, end) {
			end = end[1:]
		}
	}
	begin = begin[:strings.LastIndexByte(begin, ' ')+1]
	if at := strings.IndexByte(end, ' '); at >= 0 {
		end = end[at:]
	} else {
		end = ""
	}
	if len(begin) >= sharedLeast && len(begin) < shortest {
		d.Begin = begin
	}
	if len(end) >= sharedLeast && len(d.Begin)+len(end) < shortest {
		d.End = end
	}
}

// containsReason tells whether a reason contains a text that is a part of it, or of its folded
// form.
func containsReason(reason, text string) bool {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "…"), "…")
	if strings.Contains(reason, text) {
		return true
	}
	folds := strings.ContainsAny(text, "#\ufffd") || strings.ContainsFunc(reason, unicode.IsControl)
	return folds && strings.Contains(foldReason(reason), text)
}

// DeadReason is a reason, and the dead letters that have it.
type DeadReason struct {
	// Reason is Place.Reason with "#" for each number and each ID in it. Status codes stay.
	Reason string    `json:"reason"`
	Count  int       `json:"count"`
	Oldest time.Time `json:"oldest"` // when the first of them became dead
	Newest time.Time `json:"newest"` // when the last of them became dead
	Sample Message   `json:"sample"` // the last of them
}

// reasonsTold is how many reasons DeadReasons tells apart.
const reasonsTold = 1000

// lookingAtDead says what of a Bulk DeadReasons heeds.
var lookingAtDead = Operation{Name: "reasons", Of: OfGroup, State: Dead}

// samples is how many bodies DeadReasons reads in one step.
const samples = 20

// DeadReasons groups the dead letters of a group by reason. It reads them in chunks of 1,000, the
// oldest first. Of bulk, Group and Filter choose them, Limit is how many are examined that match,
// and Progress is told. Progress.Done counts those that match. DryRun is not used. Errors wrap
// ErrInvalidArgument if bulk has another setting.
func (a *Admin) DeadReasons(ctx context.Context, topic string, bulk Bulk) (reasons DeadReasons, err error) {
	group := groupName(bulk.Group)
	defer func() {
		if err != nil {
			err = fmt.Errorf("reasons of dead letters of group %q of topic %q: %w", group, topic, err)
		}
	}()
	if err := lookingAtDead.check(bulk); err != nil {
		return DeadReasons{}, err
	}
	left := newRest(bulk)
	reasons, err = over(ctx, a, topic, func(plain string) (DeadReasons, error) {
		bulk, some := left.next()
		if !some {
			return DeadReasons{}, nil
		}
		found, err := a.reasonsOf(ctx, topic, plain, group, bulk)
		left.used(found.Looked)
		return found, err
	}, (*DeadReasons).add)
	reasons.sort()
	return reasons, err
}

// add adds the reasons of another partition.
func (d *DeadReasons) add(part DeadReasons) {
	d.Looked, d.Other = d.Looked+part.Looked, d.Other+part.Other
	for _, r := range part.Reasons {
		at := slices.IndexFunc(d.Reasons, func(known DeadReason) bool { return known.Reason == r.Reason })
		switch {
		case at >= 0:
			known := &d.Reasons[at]
			known.Count, known.Oldest = known.Count+r.Count, earliest(known.Oldest, r.Oldest)
			if r.Newest.After(known.Newest) {
				known.Newest, known.Sample = r.Newest, r.Sample
			}
		case len(d.Reasons) >= reasonsTold:
			d.Other += r.Count
		default:
			d.Reasons = append(d.Reasons, r)
		}
	}
}

// sort puts the most frequent first, and finds what all share.
func (d *DeadReasons) sort() {
	slices.SortStableFunc(d.Reasons, func(a, b DeadReason) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	d.share()
}

// reasonsOf is DeadReasons for a plain topic of a topic.
func (a *Admin) reasonsOf(ctx context.Context, topic, plain, group string, bulk Bulk) (reasons DeadReasons, err error) {
	l, err := a.letters(ctx, plain, group, bulk, rights.Surveying)
	if err != nil {
		return DeadReasons{}, err
	}
	type known struct {
		DeadReason
		last operate.Listed
	}
	found := map[string]*known{}
	reasons.Looked, err = l.each(ctx, false, func(chunk []operate.Listed) (int, error) {
		for _, m := range chunk {
			text := foldReason(m.Record.Reason)
			r := found[text]
			if r == nil && len(found) >= reasonsTold {
				reasons.Other++
				continue
			}
			if r == nil {
				r = &known{DeadReason: DeadReason{Reason: text, Oldest: m.At}}
				found[text] = r
			}
			r.Count++
			m.Body = nil
			r.Newest, r.last = m.At, m
		}
		return len(chunk), nil
	})
	if err != nil {
		return DeadReasons{}, err
	}
	all := make([]*known, 0, len(found))
	for _, r := range found {
		all = append(all, r)
	}
	for some := range slices.Chunk(all, samples) {
		names := make([]string, len(some))
		for i, r := range some {
			names[i] = r.last.ID
		}
		bodies, err := l.topic.Bodies(ctx, names)
		if err != nil {
			return DeadReasons{}, err
		}
		for i, r := range some {
			r.last.Body = bodies[i]
			r.Sample = a.listed(topic, plain, r.last)
			reasons.Reasons = append(reasons.Reasons, r.DeadReason)
		}
	}
	return reasons, nil
}

var (
	namedID    = regexp.MustCompile(`((?:\b|_)(?i:(?:trace|span|request|correlation)[-_ ]?id|traceparent)|[a-z](?:Trace|Span|Request|Correlation)I[dD])(["']?\s*[:=]\s*["']?| )([0-9A-Za-z][-0-9A-Za-z_.+/=:]*)`)
	uuidText   = regexp.MustCompile(`(?i)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	hexText    = regexp.MustCompile(`\b0[xX][0-9a-fA-F]+\b`)
	wordText   = regexp.MustCompile(`[0-9A-Za-z]+`)
	letterText = regexp.MustCompile(`[A-Za-z]+`)
	numberText = regexp.MustCompile(`\d+(\.\d+)*`)

	// A token with digits that follows the word trace or span may be an ID with other characters.
	tracedID = regexp.MustCompile(`(\b(?i:trace|span)["']?\s*[:=]?\s*["']?)([-0-9A-Za-z_]{16,})`)

	// A status code of one to three digits follows one of these words, or a name that ends in one.
	statusBefore = regexp.MustCompile(`(?:(?:\b|_)(?i:status(?:[-_ ]?code)?|code|http(?:/(?:\d(?:\.\d)?|#))?(?:[-_ ](?:error|response|reply))?)|[a-z](?:Status(?:Code)?|Code))["']?(?:\s|[:=("'])*(?:is |was |of |an? )?$`)
	// A status code of HTTP follows one of these. Some may count something as well.
	answerBefore = regexp.MustCompile(`(?i)\b(?:answer(?:ed|s)?|respon(?:ded|ds|se)|repl(?:ied|ies|y)|(returned|returns|return|got|gets|received|receives|gave|gives|fail(?:ed|s|ure)?|err(?:or)?|refused|rejected))` +
		`(?: from [^:]{1,100}:)?(?: with| by| was| is)?(?: an?| the)?(?: error)?["']?(?:\s|[:=("'])*$`)
	answerAfter = regexp.MustCompile(`^(?:$|\s*[^\s0-9a-z]|\s+(?:after|and|at|because|but|by|for|from|in|instead|on|or|to|until|when|while|with)\b)`)
	// A known status code follows a request, or goes before one of these words.
	requestBefore = regexp.MustCompile(`(?:\b(?:GET|HEAD|POST|PUT|PATCH|DELETE|Get|Head|Post|Put|Patch|Delete) ["']?/\S*|\bhttps?://\S+?)["']?:? (?:(?:->|=>|→) )?$`)
	wordAfter     = regexp.MustCompile(`^ (?:response|reply|answer|error|status)\b`)
)

// foldReason replaces UUIDs, hexadecimal numbers, random texts such as message IDs and trace IDs,
// and numbers by "#", and control characters by a space. So reasons that differ only in these are
// one. Status codes stay, because "answered 500" and "answered 429" are two reasons.
func foldReason(reason string) string {
	reason = strings.ToValidUTF8(reason, "�")
	if strings.ContainsFunc(reason, unicode.IsControl) { // a reason is one line
		reason = strings.Join(strings.FieldsFunc(reason, unicode.IsControl), " ")
	}
	reason = namedID.ReplaceAllStringFunc(reason, func(text string) string {
		part := namedID.FindStringSubmatch(text)
		if part[2] == " " && !strings.ContainsAny(part[3], "0123456789") {
			return text // a word follows
		}
		return part[1] + part[2] + "#"
	})
	reason = uuidText.ReplaceAllString(reason, "#")
	reason = tracedID.ReplaceAllStringFunc(reason, func(text string) string {
		part := tracedID.FindStringSubmatch(text)
		if !strings.ContainsAny(part[2], "0123456789") {
			return text // a word
		}
		return part[1] + "#"
	})
	reason = hexText.ReplaceAllString(reason, "#")
	reason = wordText.ReplaceAllStringFunc(reason, func(word string) string {
		hex := strings.Trim(word, "0123456789abcdefABCDEF") == ""
		numbers := len(numberText.FindAllString(word, -1))
		mixed := numbers > 1 || numbers == 1 && letterText.MatchString(word)
		if hex && (len(word) >= 16 || len(word) >= 8 && numbers > 0) || mixed && len(word) >= 16 || numbers > 1 {
			return "#"
		}
		return word
	})
	var folded strings.Builder
	from := 0
	for _, at := range numberText.FindAllStringIndex(reason, -1) {
		folded.WriteString(reason[from:at[0]])
		if from = at[1]; isStatus(reason[:at[0]], reason[at[0]:at[1]], reason[at[1]:]) {
			folded.WriteString(reason[at[0]:at[1]])
		} else {
			folded.WriteString("#")
		}
	}
	return folded.String() + reason[from:]
}

// isStatus tells whether a number is a status code, by what is before and after it.
func isStatus(before, number, after string) bool {
	n, err := strconv.Atoi(number)
	if err != nil || len(number) > 3 || strings.IndexFunc(after, unicode.IsLetter) == 0 {
		return false
	}
	text := http.StatusText(n)
	if statusBefore.MatchString(before) {
		return true
	}
	if answer := answerBefore.FindStringSubmatch(before); answer != nil && n >= 100 && n < 600 {
		return answer[1] == "" || text != "" && answerAfter.MatchString(after)
	}
	rest := strings.TrimLeft(after, " ")
	return text != "" && (len(rest) >= len(text) && strings.EqualFold(rest[:len(text)], text) ||
		wordAfter.MatchString(after) || requestBefore.MatchString(before) && answerAfter.MatchString(after))
}
