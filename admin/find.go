package admin

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Search says what Find looks for, where, and how far.
type Search struct {
	// Topics are plain or partitioned topics. Default: all.
	Topics []string

	// Filter chooses messages. It needs a condition. Reason and times are those of one Place.
	Filter Filter

	// See, if not nil, returns what the Filter may know of a message, such as one without secrets.
	// It keeps the Places. Found.Messages are whole. It is called by one goroutine at a time.
	See func(Message) Message

	// Limit is the maximum number of messages that are found, and of lines of histories. Default
	// 20, at most 1,000.
	Limit int

	// Most is the maximum number of messages that are read, and of lines of histories. A message
	// counts once for each group that has it. Default DefaultMost.
	Most int

	// Cursor is "" to begin, or Found.Next of the search before, with the same Topics and Filter.
	Cursor string

	// Progress, if not nil, is called after each step of at most 500 messages.
	Progress func(SearchProgress)
}

// DefaultMost is the default of Search.Most: a million.
const DefaultMost = 1_000_000

// SearchProgress is how far a search is.
type SearchProgress struct {
	Topics, AllTopics int // plain topics that were read, and that there are
	Looked, Found     int // messages
}

// SearchEnd is why a search ended.
type SearchEnd string

const (
	// SearchComplete means that every message was read, but for what SearchedTopic.LeftOut names.
	SearchComplete SearchEnd = "complete"
	// SearchExact means that only IDs were looked up, because an ID names one message.
	SearchExact SearchEnd = "exact"
	// SearchLimit means that Search.Limit messages were found.
	SearchLimit SearchEnd = "limit"
	// SearchMost means that Search.Most messages were read.
	SearchMost SearchEnd = "most"
	// SearchStopped means that ctx ended, or that Redis could not be reached.
	SearchStopped SearchEnd = "stopped"
)

// Found is what Find found, and where it looked.
type Found struct {
	// Messages are in the order in which they were found. Each has Topic, its plain topic, and all
	// its Places.
	Messages []Message `json:"messages"`

	// Past are lines of histories about messages that ended, topic by topic, the newest first in
	// each. Each has Topic, its plain topic.
	Past []Ended `json:"past"`

	// Ended is why the search ended. Next is the Cursor that goes on, "" if there is nothing left.
	Ended SearchEnd `json:"ended"`
	Next  string    `json:"next,omitempty"`

	// Looked is how many messages were read, once for each group that has it. Of all is how many
	// messages the topics had at the beginning.
	Looked int `json:"looked"`
	Of     int `json:"of"`

	// Topics are the plain topics of the search, in order of their names.
	Topics []SearchedTopic `json:"topics"`

	// Histories says which histories were read.
	Histories SearchedHistories `json:"histories"`
}

// SearchedTopic is what a search read of a plain topic.
type SearchedTopic struct {
	Topic string `json:"topic"`

	// These are the messages that were read in each state, once for each group that has it.
	Waiting  int `json:"waiting"`
	Ready    int `json:"ready"`
	InHand   int `json:"in_hand"`
	Retrying int `json:"retrying"`
	Dead     int `json:"dead"`

	// Unreadable is how many of them the Unmarshaler refused, so that only their ID and delay ID
	// could be compared.
	Unreadable int `json:"unreadable,omitempty"`

	// LeftOut says what was not read, and why; "" if all was.
	LeftOut string `json:"left_out,omitempty"`
}

func (t *SearchedTopic) count(state State, n int) {
	switch state {
	case Waiting:
		t.Waiting += n
	case Ready:
		t.Ready += n
	case InHand:
		t.InHand += n
	case Retrying:
		t.Retrying += n
	case Dead:
		t.Dead += n
	}
}

// SearchedTotal adds up what was read in all topics. Its Topic is "", and its LeftOut too.
func (f Found) SearchedTotal() (all SearchedTopic) {
	for _, t := range f.Topics {
		all.Waiting, all.Ready, all.InHand = all.Waiting+t.Waiting, all.Ready+t.Ready, all.InHand+t.InHand
		all.Retrying, all.Dead, all.Unreadable = all.Retrying+t.Retrying, all.Dead+t.Dead, all.Unreadable+t.Unreadable
	}
	return all
}

// Explain says in sentences where the search looked, what it left out and why, and, if nothing was
// found, what is known of a message that is not there. The tool and the web page print them.
func (f Found) Explain() (sentences []string) {
	all, topics := f.SearchedTotal(), texts.Many(len(f.Topics), "topic")
	if f.Ended == SearchExact {
		sentences = append(sentences, fmt.Sprintf("Looked up the ID in %s. No message had to be read.", topics))
	} else {
		sentences = append(sentences, fmt.Sprintf("Looked at %s in %s, in all groups: %s waiting, %s ready, %s in hand, %s retrying, %s dead. A message counts once for each group that has it.",
			texts.Many(f.Looked, "message"), topics, texts.Number(all.Waiting), texts.Number(all.Ready), texts.Number(all.InHand),
			texts.Number(all.Retrying), texts.Number(all.Dead)))
	}
	var reasons []string
	of := map[string][]string{}
	for _, t := range f.Topics {
		if t.LeftOut == "" {
			continue
		}
		if of[t.LeftOut] == nil {
			reasons = append(reasons, t.LeftOut)
		}
		of[t.LeftOut] = append(of[t.LeftOut], t.Topic)
	}
	for i, reason := range reasons {
		if i == mostLeftOut {
			sentences = append(sentences, fmt.Sprintf("Left out: more, for %s.", texts.Many(len(reasons)-i, "further reason")))
			break
		}
		about := fmt.Sprintf("topic %q", of[reason][0])
		if n := len(of[reason]); n > 1 {
			about = fmt.Sprintf("%s, such as %q", texts.Many(n, "topic"), of[reason][0])
		}
		sentences = append(sentences, fmt.Sprintf("Left out of %s: %s.", about, reason))
	}
	nothing := len(f.Messages) == 0 && len(f.Past) == 0 && f.Next == ""
	sentences = append(sentences, f.Histories.explain(nothing)...)
	if nothing {
		sentences = append(sentences, "Of a message that is not there this is known: "+texts.Ended+".")
	}
	return sentences
}

// mostLeftOut is how many reasons Explain names.
const mostLeftOut = 10

// Find looks for messages in all states and groups, of some topics or of all. It only reads.
//
// IDs and delay IDs are looked up first, in all topics, then IDs, UUIDs and delay IDs in the
// histories of groups. If an ID is found, or if the Filter has IDs, that is all. Then Find reads
// the messages, in steps of at most 500, one plain topic after the other, and in each the states in
// the order of their constants. So a message that goes on to a later state meanwhile is still
// found. One that goes back, such as by a nack without delay, may be missed.
//
// With an error, Found has what was found before it, and Next. A topic that cannot be read keeps no
// other from its turn: SearchedTopic.LeftOut says why. If none can be read, the error is that of
// the first. Errors wrap ErrInvalidArgument for a wrong Search, or ErrNotFound if one of
// Search.Topics does not exist.
func (a *Admin) Find(ctx context.Context, s Search) (Found, error) {
	f := &finder{Search: s, admin: a, known: map[string]bool{}}
	err := f.check()
	if err == nil {
		err = f.run(ctx)
	}
	if err != nil {
		f.found.Ended = SearchStopped
		err = fmt.Errorf("find: %w", err)
	}
	f.leaveRest(err)
	return f.found, err
}
