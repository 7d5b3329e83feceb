package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Limits of bulk operations.
const (
	maxRunning = 10  // at the same time
	maxJobs    = 100 // that are remembered
)

// jobs are the bulk operations of this process.
type jobs struct {
	mu  sync.Mutex
	all []*job // the newest last
}

// job is one bulk operation. All but cancel is guarded by jobs.mu.
type job struct {
	view   jobView
	cancel context.CancelFunc
}

// jobView is what a page shows of a job.
type jobView struct {
	ID, By       string
	Work         work
	Target       target
	Count        int // how many are to be changed
	Looked, Done int
	Began, Ended time.Time // Ended is zero while it runs
	Err          string
	Stopped      bool
	Findings     *findings // of a check or a repair that has ended
	Said         []string  // what else there is to know about its end
	Chosen       string    // the filter, as far as the user may see it
}

// Checks returns whether the job only checks.
func (j jobView) Checks() bool { return j.Work.Name == checking.Name }

// Percent returns how much is done. How many entries a check reads is only about known.
func (j jobView) Percent() int {
	done := j.Done
	if j.Checks() {
		done = j.Looked
	}
	percent := min(100, 100*done/max(j.Count, 1))
	switch {
	case j.Checks() && j.Running():
		percent = min(percent, 99)
	case j.Checks() && j.Err == "" && !j.Stopped:
		percent = 100
	}
	return percent
}

// Title says what is done.
func (j jobView) Title() string {
	if j.Checks() {
		return "Check of " + j.Target.Topic
	}
	return j.Work.Caption() + " " + texts.Many(j.Count, j.Work.Unit)
}

// Running returns whether it is not at its end.
func (j jobView) Running() bool { return j.Ended.IsZero() }

// start begins a job and returns its ID.
func (s *jobs) start(d *Dashboard, w work, t target, user User, count int) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := 0
	for _, j := range s.all {
		if !j.view.Running() {
			continue
		}
		running++
		if w.Name != j.view.Work.Name {
			continue
		}
		switch {
		case w.Name == checking.Name:
			return "", &refusal{http.StatusTooManyRequests, "Another topic is being checked. Wait until that ends."}
		case w.Name == mendingName && j.view.Target.Topic == t.Topic:
			return "", &refusal{http.StatusTooManyRequests, "The topic is being mended already. Wait until that ends."}
		}
	}
	if running >= maxRunning || d.running.Err() != nil {
		return "", &refusal{http.StatusTooManyRequests, "Too many operations run. Wait until one ends. Nothing was changed."}
	}
	ctx, cancel := context.WithCancel(d.running)
	j := &job{view: jobView{ID: rand.Text(), By: user.Name, Work: w, Target: t, Count: count, Began: d.sweep.now()}, cancel: cancel}
	if s.all = append(s.all, j); len(s.all) > maxJobs {
		s.forgetOne()
	}
	d.workers.Go(func() {
		defer cancel()
		s.run(ctx, d, j)
	})
	return j.view.ID, nil
}

// forgetOne drops the oldest job that has ended, a check if there is one. A viewer may begin
// checks, which must not push out what operators did.
func (s *jobs) forgetOne() {
	for _, checks := range []bool{true, false} {
		i := slices.IndexFunc(s.all, func(j *job) bool { return !j.view.Running() && j.view.Checks() == checks })
		if i >= 0 {
			s.all = slices.Delete(s.all, i, i+1)
			return
		}
	}
}

// run does the work of a job, and records its beginning and its end.
func (s *jobs) run(ctx context.Context, d *Dashboard, j *job) {
	w, t := j.view.Work, j.view.Target
	act := admin.Act{By: j.view.By, Action: actionOf(w), Topic: t.Topic, Group: t.Group, Schedule: t.Schedule, Detail: fmt.Sprintf("begins with %s", texts.Many(j.view.Count, w.Unit))}
	if t.Reason != "" {
		act.Detail += fmt.Sprintf(", reason %q", t.Reason)
	}
	if t.To != "" {
		act.Detail += fmt.Sprintf(", to %q", t.To)
	}
	for _, more := range []string{string(t.Asked.State), t.Asked.String(), t.Due.detail} {
		if more != "" {
			act.Detail += ", " + more
		}
	}
	if t.Spread > 0 {
		act.Detail += ", over " + t.Spread.String()
	}
	record := func(err error) {
		if !j.view.Checks() { // that changes nothing
			d.record(ctx, act, err)
		}
	}
	did, err := result{}, error(nil)
	guard(&err, func() {
		record(nil)
		guard(&err, func() { did, err = s.work(ctx, d, j) })
		act.Detail = "done: " + texts.Many(did.done, w.Unit)
		record(err)
	})
	said := ""
	stopped := errors.Is(err, context.Canceled)
	if err != nil && !stopped {
		guard(new(error), func() { said = explain(err).Text + " " + err.Error() })
	}
	s.mu.Lock()
	j.view.Findings, j.view.Said = did.found, did.said
	j.view.Ended, j.view.Done = d.sweep.now(), did.done
	j.view.Stopped, j.view.Err = stopped, said
	s.mu.Unlock()
	if w.removesTopic() && err == nil {
		d.sweep.forget(t.Topic)
	}
}

// actionOf returns the name of a work in the audit log, which is that of the tool.
func actionOf(w work) string {
	if w.Name == transferring.Name {
		return "move"
	}
	return w.Name
}

// guard has a panic of users' code, such as a Logger or a Marshaler, end this job only.
func guard(err *error, do func()) {
	defer func() {
		if panicked := recover(); panicked != nil {
			*err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	do()
}

// work calls the operation.
func (s *jobs) work(ctx context.Context, d *Dashboard, j *job) (did result, err error) {
	progress := func(p admin.Progress) {
		s.mu.Lock()
		defer s.mu.Unlock()
		j.view.Looked, j.view.Done = p.Looked, p.Done
	}
	if j.view.Work.does != nil {
		return j.view.Work.does(ctx, d, j.view.Target, progress)
	}
	doing := j.view.Target.bulk()
	doing.Progress = progress
	if !j.view.Work.Whole() {
		doing.Limit = j.view.Count
	}
	did.done, err = j.view.Work.Run(ctx, d.admin, j.view.Target.Topic, doing)
	return did, err
}

// get returns a job.
func (s *jobs) get(id string) (*job, jobView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.all {
		if j.view.ID == id {
			return j, j.view, true
		}
	}
	return nil, jobView{}, false
}

// of returns the jobs of a group, the newest first.
func (s *jobs) of(topic, group string) (found []jobView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.all {
		if j.view.Target.Topic == topic && j.view.Target.Group == group {
			found = append(found, j.view)
		}
	}
	slices.SortStableFunc(found, func(a, b jobView) int { return cmp.Compare(b.Began.UnixNano(), a.Began.UnixNano()) })
	return found[:min(len(found), 5)]
}

var errNoJob = &refusal{http.StatusNotFound, "This operation is not known. The program may have been started again. The audit log has what was done."}

// mended returns whether a topic was mended, or is being mended, since a time.
func (s *jobs) mended(topic string, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.all, func(j *job) bool {
		return j.view.Work.Name == mendingName && j.view.Target.Topic == topic && !j.view.Began.Before(since)
	})
}

func (d *Dashboard) job(c *call) (*view, error) {
	_, j, ok := d.jobs.get(c.q("id"))
	if !ok {
		return nil, errNoJob
	}
	crumbs := []crumb{{"Topics", d.address("/")}}
	if !j.Work.removesTopic() {
		crumbs = append(crumbs, crumb{j.Target.Topic, d.address("/topic", "t", j.Target.Topic)})
	}
	j.Chosen = d.seenText(j.Target.Asked.String(), c.user)
	return &view{Title: j.Title(), Crumbs: crumbs, Now: d.sweep.now(), Live: true, Data: j}, nil
}

// stopJob ends a job between two of its steps.
func (d *Dashboard) stopJob(c *call) (string, error) {
	j, seen, ok := d.jobs.get(c.q("id"))
	if !ok {
		return "", errNoJob
	}
	j.cancel()
	if t := seen.Target; seen.Running() && !seen.Checks() {
		d.record(c.ctx, admin.Act{By: c.user.Name, Action: "stop", Topic: t.Topic, Group: t.Group, Schedule: t.Schedule, Detail: seen.Work.Name}, nil)
	}
	return d.address("/job", "id", c.q("id")), nil
}
