package dashboard

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
)

// flashes are what changes did, until the next page shows it. The browser has only a random name,
// so that no link can put words into the page.
type flashes struct {
	mu    sync.Mutex
	texts map[string]string
}

func (f *flashes) put(text string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.texts == nil || len(f.texts) > 1000 {
		f.texts = map[string]string{}
	}
	name := rand.Text()
	f.texts[name] = text
	return name
}

func (f *flashes) take(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := f.texts[name]
	delete(f.texts, name)
	return text
}

// back returns the address of the page to which a change leads, which says what it did.
func (d *Dashboard) back(path, text string, pairs ...string) string {
	return d.address(path, append(pairs, "f", d.flashes.put(text))...)
}

// span reads a length of time that the user typed. 0 would mean something else, so it is refused.
func span(text string) (time.Duration, error) {
	d, err := when.Duration(text)
	if err != nil || d <= 0 {
		return 0, bad(fmt.Sprintf("%q is no length of time. Write it like 30m, 2h or 3d. Nothing was changed.", texts.Clip(text, 40)))
	}
	return d, nil
}

// spanOrNone is span, but 0 if the user typed nothing.
func spanOrNone(text string) (time.Duration, error) {
	if text = strings.TrimSpace(text); text == "" {
		return 0, nil
	}
	return span(text)
}

// scopeOf returns what a form pauses: a group if the form has one, else the topic.
func scopeOf(c *call) (topic, group string, scope admin.Scope) {
	topic, group = c.q("t"), c.q("g")
	if group != "" {
		scope = admin.InGroup(group)
	}
	return topic, group, scope
}

func (d *Dashboard) pause(c *call) (string, error) {
	topic, group, scope := scopeOf(c)
	o := admin.PauseOptions{Scope: scope, By: c.user.Name, Why: strings.TrimSpace(c.q("why"))}
	var err error
	if o.For, err = spanOrNone(c.q("for")); err != nil {
		return "", err
	}
	_, err = d.admin.Pause(c.ctx, topic, o)
	d.record(c.ctx, admin.Act{By: c.user.Name, Action: "pause", Topic: topic, Group: group, Detail: o.Why}, err)
	return d.back("/topic", "Paused. Messages still become ready, but nobody gets them.", "t", topic), err
}

func (d *Dashboard) resume(c *call) (string, error) {
	topic, group, scope := scopeOf(c)
	_, err := d.admin.Resume(c.ctx, topic, admin.ResumeOptions{Scope: scope})
	d.record(c.ctx, admin.Act{By: c.user.Name, Action: "resume", Topic: topic, Group: group}, err)
	return d.back("/topic", "Resumed.", "t", topic), err
}

// limit sets, lifts or resets the limit of a group.
func (d *Dashboard) limit(c *call) (string, error) {
	topic, group, why := c.q("t"), c.q("g"), strings.TrimSpace(c.q("why"))
	act := admin.Act{By: c.user.Name, Action: "limit", Topic: topic, Group: group, Detail: why}
	var did admin.LimitChange
	var err error
	switch c.PathValue("do") {
	case "set":
		limit, wrong := limitOf(c)
		if wrong != nil {
			return "", wrong
		}
		did, err = d.admin.SetLimit(c.ctx, topic, group, limit)
		if act.Detail = limit.String(); err == nil {
			act.Detail = did.After.Limit.String() // with the burst
		}
		if why != "" {
			act.Detail += ": " + why
		}
	case "lift":
		act.Action = "lift-limit"
		did, err = d.admin.SetLimit(c.ctx, topic, group, admin.Limit{})
	case "reset":
		act.Action = "reset-limit"
		did, err = d.admin.ResetLimit(c.ctx, topic, group)
	default:
		return "", errNoPage
	}
	d.record(c.ctx, act, err)
	return d.back("/topic", fmt.Sprintf("The limit of group %s is now: %s.", texts.Clip(did.Group, 80), did.After), "t", topic), err
}

// limitOf reads the limit that the user typed. An empty form is refused, because it would lift the
// limit.
func limitOf(c *call) (limit admin.Limit, err error) {
	rate, atOnce := strings.TrimSpace(c.q("rate")), strings.TrimSpace(c.q("at-once"))
	if rate == "" && atOnce == "" {
		return limit, bad("Give a rate, a number at once, or both. Lift is for no limit. Nothing was changed.")
	}
	if rate != "" {
		if limit.Rate, err = admin.ParseRate(rate); err != nil {
			return limit, bad(fmt.Sprintf("%q is no rate. Write it like 50/s, 10/m or 100/5s. Nothing was changed.", texts.Clip(rate, 40)))
		}
	}
	if limit.Burst, err = numberOf(c, "burst"); err == nil {
		limit.AtOnce, err = numberOf(c, "at-once")
	}
	return limit, err
}

// numberOf reads a number of messages that the user typed, 0 if none.
func numberOf(c *call, field string) (int, error) {
	text := strings.TrimSpace(c.q(field))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, bad(fmt.Sprintf("%q is no number of messages, from 1. Nothing was changed.", texts.Clip(text, 40)))
	}
	return n, nil
}

// dueTime is when a message is to be due.
type dueTime struct {
	when          admin.When
	detail, words string // for the audit log, and for the user
}

// dueOf reads when a message is to be due: in a length of time, or at a time. What is past is now.
func (d *Dashboard) dueOf(c *call) (dueTime, error) {
	text := strings.TrimSpace(c.q("in"))
	by, err := when.Duration(text)
	if back, failed := time.ParseDuration(text); failed == nil && back <= 0 {
		by, err = back, nil
	}
	switch now := d.sweep.now(); {
	case err == nil && by <= 0:
		return dueTime{admin.In(by), "in " + by.String(), "now"}, nil
	case err == nil:
		return dueTime{admin.In(by), "in " + by.String(), "in " + duration(by)}, nil
	default:
		at, err := when.Parse(text, now.In(d.zone(c)), when.Future)
		if err != nil {
			return dueTime{}, bad(sentence(err))
		}
		words := "at " + at.Format("2006-01-02 15:04:05 MST")
		if !at.After(now) {
			words = "now"
		}
		return dueTime{admin.At(at), "at " + at.UTC().Format(time.RFC3339), words}, nil
	}
}

// settle changes one message.
func (d *Dashboard) settle(c *call) (string, error) {
	topic, group, id := c.q("t"), c.q("g"), c.q("id")
	act := admin.Act{By: c.user.Name, Topic: topic, Group: group, MessageID: id}
	message := admin.GroupMessage{Group: group, ID: id}
	said, gone := "", false
	was := func() string { // so that an operator can go back
		m, _ := d.admin.Get(c.ctx, topic, admin.ByID(id))
		return m.DueText()
	}
	var err error
	switch c.PathValue("do") {
	case "requeue":
		act.Action, said = "requeue", "Requeued: it is ready again."
		err = d.admin.Requeue(c.ctx, topic, message)
	case "delete":
		act.Action, said, gone = "purge", "Deleted.", true
		err = d.admin.DeleteDead(c.ctx, topic, message)
	case "now":
		act.Action, act.Detail, said = "deliver-now", was(), "It is due now."
		err = d.admin.Reschedule(c.ctx, topic, admin.ByID(id), admin.When{})
	case "kill":
		act.Action, act.Detail, said = "kill", strings.TrimSpace(c.q("why")), "It is a dead letter now."
		_, err = d.admin.Kill(c.ctx, topic, message, admin.KillOptions{Reason: act.Detail})
	case "cancel":
		act.Action, act.Detail, said, gone = "cancel", was(), "Cancelled: nobody gets it any more.", true
		err = d.admin.Cancel(c.ctx, topic, admin.ByID(id))
	case "later":
		due, wrong := d.dueOf(c)
		if wrong != nil {
			return "", wrong
		}
		act.Action, act.Detail, said = "reschedule", strings.TrimSuffix(due.detail+", "+was(), ", "), "Rescheduled: it is due "+due.words+"."
		err = d.admin.Reschedule(c.ctx, topic, admin.ByID(id), due.when)
	default:
		return "", errNoPage
	}
	d.record(c.ctx, act, err)
	if gone {
		return d.back("/topic", said, "t", topic), err
	}
	return d.back("/message", said, "t", topic, "id", id), err
}
