package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// finder is one search.
type finder struct {
	Search
	admin   *Admin
	from    searchCursor
	topics  []*operate.Topic          // nil for one that cannot be read; in the order of found.Topics
	known   map[string]bool           // plain topic and ID of what was found
	keeps   []map[string]GroupHistory // of topics, by group
	done    []bool                    // of topics: read to the end, or left out with a reason
	failure error                     // why the first topic is left out that cannot be read; nil: none is
	found   Found
}

// searchCursor is where a search goes on: behind a place of a page.
type searchCursor struct {
	Topic string
	State State
	Group string
	Page  string // the cursor of List
}

func (c searchCursor) String() string {
	parts := []string{c.Topic, string(c.State), c.Group, c.Page}
	for i, part := range parts {
		parts[i] = url.QueryEscape(part)
	}
	return strings.Join(parts, "/")
}

func readSearchCursor(text string) (c searchCursor, err error) {
	parts := strings.Split(text, "/")
	for i, part := range parts {
		parts[i], err = url.QueryUnescape(part)
		if err != nil {
			break
		}
	}
	if err == nil && len(parts) == 4 {
		c = searchCursor{parts[0], State(parts[1]), parts[2], parts[3]}
	}
	if c.Topic == "" || c.State != "" && !slices.Contains(searchedStates, c.State) {
		return c, fmt.Errorf("%w: %q is no Cursor of a search", ErrInvalidArgument, text)
	}
	return c, nil
}

// searchedStates are the states in the order in which they are read.
var searchedStates = []State{Waiting, Ready, InHand, Retrying, Dead}

// maxFound is the largest Search.Limit.
const maxFound = 1000

// check refuses a wrong Search, and sets the defaults.
func (f *finder) check() (err error) {
	switch {
	case f.Filter.isZero():
		return fmt.Errorf("%w: Filter has no condition", ErrInvalidArgument)
	case f.Limit < 0 || f.Limit > maxFound:
		return fmt.Errorf("%w: Limit is %d, want from 0 to %d", ErrInvalidArgument, f.Limit, maxFound)
	case f.Most < 0:
		return fmt.Errorf("%w: Most is %d, want 0 or more", ErrInvalidArgument, f.Most)
	}
	f.Limit, f.Most = cmp.Or(f.Limit, 20), cmp.Or(f.Most, DefaultMost)
	if f.Cursor != "" {
		f.from, err = readSearchCursor(f.Cursor)
	}
	return err
}

func (f *finder) run(ctx context.Context) error {
	if err := f.open(ctx); err != nil {
		return err
	}
	if f.Cursor == "" {
		ended, err := f.lookUp(ctx)
		if err == nil {
			err = f.recall(ctx)
		}
		if ended || err != nil {
			return err
		}
	}
	for i, t := range f.topics {
		name := f.found.Topics[i].Topic
		switch {
		case f.done[i]:
			continue
		case name < f.from.Topic:
			f.done[i], f.found.Topics[i].LeftOut = true, "what the search before Cursor read"
			continue
		}
		if err := f.read(ctx, i, t); err != nil || f.found.Next != "" {
			return err
		}
	}
	f.found.Ended = SearchComplete
	return nil
}

// open finds the topics, and counts their messages. Those without any are not read.
func (f *finder) open(ctx context.Context) error {
	names, err := f.names(ctx)
	if err != nil {
		return err
	}
	f.topics, f.done, f.keeps = make([]*operate.Topic, len(names)), make([]bool, len(names)), make([]map[string]GroupHistory, len(names))
	f.found.Topics = make([]SearchedTopic, len(names))
	for i, name := range names {
		f.found.Topics[i].Topic = name
	}
	topics, of, err := f.admin.handles(ctx, names, rights.Searching, f.leaveOut)
	if err != nil {
		return err
	}
	counted, err := operate.StatsOf(ctx, topics)
	if err != nil {
		return err
	}
	for i, c := range counted {
		at := of[i]
		switch {
		case errors.Is(c.Err, ErrNotFound) && slices.Contains(f.Topics, names[at]):
			return aboutTopic(names[at], c.Err)
		case c.Err != nil:
			f.leaveOut(at, c.Err)
			continue
		}
		stats := readStats(names[at], c)
		if stats.Stream {
			f.found.Topics[at].LeftOut = "messages that are in its Redis Stream, which other programs read"
		}
		f.keeps[at] = map[string]GroupHistory{}
		for _, g := range stats.Groups {
			f.keeps[at][g.Group] = g.History
		}
		f.found.Of += stats.Messages
		f.topics[at], f.done[at] = topics[i], stats.Messages == 0
	}
	if f.failure != nil && !slices.ContainsFunc(f.topics, func(t *operate.Topic) bool { return t != nil }) {
		return f.failure // of all
	}
	return nil
}

// names returns the names of the plain topics, in order.
func (f *finder) names(ctx context.Context) (names []string, err error) {
	if len(f.Topics) > 0 {
		names, err = f.admin.Plain(ctx, f.Topics...)
	} else {
		for cursor := ""; ; {
			var page []string
			if page, cursor, err = f.admin.Topics(ctx, cursor, 1000); err != nil {
				return nil, err
			}
			if names = append(names, page...); cursor == "" {
				break
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// leaveOut notes that a topic cannot be read.
func (f *finder) leaveOut(i int, err error) {
	f.done[i], f.failure = true, cmp.Or(f.failure, err)
	f.found.Topics[i].LeftOut = "all: " + err.Error()
}

// leaveRest notes what was not reached.
func (f *finder) leaveRest(err error) {
	why := map[SearchEnd]string{SearchLimit: "enough messages were found before", SearchMost: "as many messages as asked for were read before"}[f.found.Ended]
	switch {
	case f.found.Ended == SearchComplete || f.found.Ended == SearchExact:
		return
	case err != nil:
		why = "the search was stopped before: " + err.Error()
	}
	for i := range f.found.Topics {
		if t := &f.found.Topics[i]; !f.done[i] {
			t.LeftOut = "what was not reached: " + why
		}
	}
}

// isID matches IDs of messages.
var isID = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{26}$`)

// refs returns the messages that the filter may name.
func (f *finder) refs() (refs []operate.Ref) {
	for id, chosen := range f.Filter.IDs {
		if chosen {
			refs = append(refs, operate.Ref{ID: id})
		}
	}
	if isID.MatchString(f.Filter.Any) {
		refs = append(refs, operate.Ref{ID: f.Filter.Any})
	}
	for _, name := range []string{f.Filter.DelayID, f.Filter.Any} {
		if name != "" && len(name) <= redisdelay.MaxDelayIDLength {
			refs = append(refs, operate.Ref{DelayID: name})
		}
	}
	return refs
}

// lookUp looks up what the filter names, and returns whether the search is at its end.
func (f *finder) lookUp(ctx context.Context) (ended bool, err error) {
	byID := f.Filter.IDs != nil
	for _, ref := range f.refs() {
		for i, t := range f.topics {
			if f.done[i] {
				continue
			}
			found, err := t.Find(ctx, ref)
			if ref.ID == "" && (errors.Is(err, ErrNotFound) || errors.Is(err, ErrTooLate)) {
				found, err = t.FindRetrying(ctx, ref.DelayID)
			}
			switch {
			case errors.Is(err, ErrNotFound), errors.Is(err, ErrTooLate):
				continue
			case err != nil:
				if err = f.failed(ctx, i, err); err != nil {
					return false, err
				}
				continue
			}
			m := f.admin.message("", t.Name, found.Stored)
			for _, p := range found.Places {
				m.Places = append(m.Places, readPlace(p))
			}
			if !f.chosen(m) {
				continue
			}
			f.add(m)
			byID = byID || ref.ID != ""
			if len(f.found.Messages) == f.Limit {
				f.found.Ended, f.found.Next = SearchLimit, searchCursor{Topic: f.found.Topics[0].Topic}.String()
				return true, nil
			}
		}
	}
	if byID {
		f.found.Ended = SearchExact
	}
	return byID, nil
}

// chosen returns whether the filter chooses a message in one of its places.
func (f *finder) chosen(m Message) bool {
	places := m.Places
	if len(places) == 0 {
		places = []Place{{}}
	}
	for _, p := range places {
		one := m
		one.Places = []Place{p}
		if f.See != nil {
			one = f.See(one)
		}
		if f.Filter.Matches(one) {
			return true
		}
	}
	return false
}

func (f *finder) add(m Message) {
	if key := m.Topic + "\x00" + m.ID; !f.known[key] {
		f.known[key] = true
		f.found.Messages = append(f.found.Messages, m)
	}
}

// failed returns an error that ends the search. Any other leaves out the topic.
func (f *finder) failed(ctx context.Context, i int, err error) error {
	if ctx.Err() != nil || servers.Unreachable(err) && !f.admin.client.Cluster() {
		return err
	}
	f.leaveOut(i, err)
	return nil
}

// read reads a plain topic, from the cursor on if that is of it.
func (f *finder) read(ctx context.Context, i int, t *operate.Topic) error {
	name := f.found.Topics[i].Topic
	groups, err := t.Existing(ctx)
	if err != nil {
		return f.failed(ctx, i, err)
	}
	for _, state := range searchedStates {
		of := slices.Sorted(slices.Values(groups.Names))
		if state == Waiting {
			of = []string{""}
		}
		for _, group := range of {
			at := searchCursor{Topic: name, State: state, Group: group}
			if from := f.from; from.Topic == name && from.State != "" {
				order := cmp.Or(slices.Index(searchedStates, state)-slices.Index(searchedStates, from.State), strings.Compare(group, from.Group))
				if order < 0 {
					continue
				}
				if order == 0 {
					at.Page = from.Page
				}
			}
			err := f.readPlace(ctx, i, t, at)
			if errors.Is(err, ErrNotFound) {
				continue // the group is gone
			}
			if err != nil {
				if err = f.failed(ctx, i, err); err != nil {
					f.found.Next = cmp.Or(f.found.Next, at.String())
				}
				return err
			}
			if f.found.Next != "" {
				return nil
			}
		}
	}
	f.done[i] = true
	return nil
}

// readPlace reads the messages of one state, and of one group. If the search ends, it sets Next.
func (f *finder) readPlace(ctx context.Context, i int, t *operate.Topic, at searchCursor) error {
	bytes := 0
	if f.Filter.needsBodies() {
		bytes = searchedBytes
	}
	leased := map[string]bool{} // consumers extend leases, so pages of messages in hand have no end
	for {
		page, err := t.List(ctx, at.Group, string(at.State), at.Page, min(searchedStep, f.Most-f.found.Looked), bytes)
		if err != nil {
			f.found.Next = at.String()
			if errors.Is(err, ErrNotFound) {
				f.found.Next = ""
			}
			return err
		}
		fresh := at.State != InHand
		for _, l := range page.Messages {
			if at.State == InHand && leased[l.ID] {
				continue
			}
			leased[l.ID], fresh = true, true
			f.found.Looked++
			f.found.Topics[i].count(at.State, 1)
			m := f.admin.listed("", t.Name, l)
			if bytes > 0 && m.Err != nil {
				f.found.Topics[i].Unreadable++
			}
			if f.known[m.Topic+"\x00"+m.ID] || !f.chosen(m) {
				continue
			}
			if m, err = f.whole(ctx, t, m); err != nil {
				f.found.Next = at.String()
				return err
			}
			f.add(m)
			if len(f.found.Messages) == f.Limit {
				at.Page = l.Next
				f.found.Ended, f.found.Next = SearchLimit, at.String()
				f.tell(i)
				return nil
			}
		}
		f.tell(i)
		if page.Next == "" || !fresh {
			return nil
		}
		at.Page = page.Next
		if f.found.Looked >= f.Most {
			f.found.Ended, f.found.Next = SearchMost, at.String()
			return nil
		}
	}
}

// A step reads at most so many messages, and about so many bytes of them. It takes Redis about two
// milliseconds.
const (
	searchedStep  = 500
	searchedBytes = 1 << 20
)

func (f *finder) tell(i int) {
	if f.Progress != nil {
		f.Progress(SearchProgress{i, len(f.topics), f.found.Looked, len(f.found.Messages)})
	}
}

// whole returns a message that was listed with all its places. What the list said of a group counts
// where Redis does not know.
func (f *finder) whole(ctx context.Context, t *operate.Topic, listed Message) (Message, error) {
	found, err := t.Find(ctx, operate.Ref{ID: listed.ID})
	if errors.Is(err, queue.ErrNotFound) {
		return listed, nil // it ended meanwhile
	}
	if err != nil {
		return listed, err
	}
	m, seen := f.admin.message("", t.Name, found.Stored), listed.Places[0]
	for _, p := range found.Places {
		place := readPlace(p)
		if place.Group == seen.Group && (place.State == Unknown || place.State == seen.State) {
			place.State, place.At = seen.State, seen.At
		}
		m.Places = append(m.Places, place)
	}
	if len(m.Places) == 0 {
		m.Places = listed.Places
	}
	return m, nil
}
