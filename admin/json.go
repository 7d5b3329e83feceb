package admin

import "github.com/redisdelay/watermill-redisdelay/internal/jsontext"

// object returns a struct as a JSON object that people and scripts read: see jsontext.Object.
func object(v any) ([]byte, error) { return jsontext.Object(v) }

// read fills a struct from such an object: see jsontext.Read.
func read(text []byte, v any) error { return jsontext.Read(text, v) }

// MarshalJSON writes the fields as docs/control.md says.
func (s Stats) MarshalJSON() ([]byte, error) { return object(s) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (s *Stats) UnmarshalJSON(text []byte) error { return read(text, s) }

// MarshalJSON writes the fields as docs/control.md says.
func (g GroupStats) MarshalJSON() ([]byte, error) { return object(g) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (g *GroupStats) UnmarshalJSON(text []byte) error { return read(text, g) }

// MarshalJSON writes the fields as docs/control.md says.
func (g GroupCounters) MarshalJSON() ([]byte, error) { return object(g) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (g *GroupCounters) UnmarshalJSON(text []byte) error { return read(text, g) }

// MarshalJSON writes the fields as docs/control.md says.
func (l GroupLimit) MarshalJSON() ([]byte, error) { return object(l) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (l *GroupLimit) UnmarshalJSON(text []byte) error { return read(text, l) }

// MarshalJSON writes the fields as docs/control.md says.
func (h History) MarshalJSON() ([]byte, error) { return object(h) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (h *History) UnmarshalJSON(text []byte) error { return read(text, h) }

// MarshalJSON writes the fields as docs/control.md says.
func (h GroupHistory) MarshalJSON() ([]byte, error) { return object(h) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (h *GroupHistory) UnmarshalJSON(text []byte) error { return read(text, h) }

// MarshalJSON writes the fields as docs/control.md says.
func (h HistoryChange) MarshalJSON() ([]byte, error) { return object(h) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (h *HistoryChange) UnmarshalJSON(text []byte) error { return read(text, h) }

// MarshalJSON writes the fields as docs/control.md says.
func (e Ended) MarshalJSON() ([]byte, error) { return object(e) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (e *Ended) UnmarshalJSON(text []byte) error { return read(text, e) }

// MarshalJSON writes the fields as docs/control.md says.
func (l LimitChange) MarshalJSON() ([]byte, error) { return object(l) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (l *LimitChange) UnmarshalJSON(text []byte) error { return read(text, l) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Removal) MarshalJSON() ([]byte, error) { return object(r) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (r *Removal) UnmarshalJSON(text []byte) error { return read(text, r) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Pause) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *Pause) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Readiness) MarshalJSON() ([]byte, error) { return object(r) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (r *Readiness) UnmarshalJSON(text []byte) error { return read(text, r) }

// MarshalJSON writes the fields as docs/control.md says.
func (t TopicReadiness) MarshalJSON() ([]byte, error) { return object(t) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (t *TopicReadiness) UnmarshalJSON(text []byte) error { return read(text, t) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Message) MarshalJSON() ([]byte, error) { return object(m) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (m *Message) UnmarshalJSON(text []byte) error { return read(text, m) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Place) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *Place) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Page) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *Page) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (b Bucket) MarshalJSON() ([]byte, error) { return object(b) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (b *Bucket) UnmarshalJSON(text []byte) error { return read(text, b) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Progress) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *Progress) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (r DeadReasons) MarshalJSON() ([]byte, error) { return object(r) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (r *DeadReasons) UnmarshalJSON(text []byte) error { return read(text, r) }

// MarshalJSON writes the fields as docs/control.md says.
func (r DeadReason) MarshalJSON() ([]byte, error) { return object(r) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (r *DeadReason) UnmarshalJSON(text []byte) error { return read(text, r) }

// MarshalJSON writes the fields as docs/control.md says.
func (f Finding) MarshalJSON() ([]byte, error) { return object(f) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (f *Finding) UnmarshalJSON(text []byte) error { return read(text, f) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Report) MarshalJSON() ([]byte, error) { return object(r) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (r *Report) UnmarshalJSON(text []byte) error { return read(text, r) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Repaired) MarshalJSON() ([]byte, error) { return object(r) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (r *Repaired) UnmarshalJSON(text []byte) error { return read(text, r) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Mending) MarshalJSON() ([]byte, error) { return object(m) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (m *Mending) UnmarshalJSON(text []byte) error { return read(text, m) }

// MarshalJSON writes the fields as docs/control.md says.
func (s Schedule) MarshalJSON() ([]byte, error) { return object(s) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (s *Schedule) UnmarshalJSON(text []byte) error { return read(text, s) }

// MarshalJSON writes the fields as docs/control.md says.
func (s TopicSchedules) MarshalJSON() ([]byte, error) { return object(s) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (s *TopicSchedules) UnmarshalJSON(text []byte) error { return read(text, s) }

// MarshalJSON writes the fields as docs/control.md says.
func (e ScheduleError) MarshalJSON() ([]byte, error) { return object(e) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (e *ScheduleError) UnmarshalJSON(text []byte) error { return read(text, e) }

// MarshalJSON writes the fields as docs/control.md says.
func (w Worker) MarshalJSON() ([]byte, error) { return object(w) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (w *Worker) UnmarshalJSON(text []byte) error { return read(text, w) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Problem) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *Problem) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (d Diagnosis) MarshalJSON() ([]byte, error) { return object(d) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (d *Diagnosis) UnmarshalJSON(text []byte) error { return read(text, d) }

// MarshalJSON writes the fields as docs/control.md says.
func (a Act) MarshalJSON() ([]byte, error) { return object(a) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (a *Act) UnmarshalJSON(text []byte) error { return read(text, a) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Partitioning) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *Partitioning) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (t Tailed) MarshalJSON() ([]byte, error) { return object(t) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (t *Tailed) UnmarshalJSON(text []byte) error { return read(text, t) }

// MarshalJSON writes the fields as docs/control.md says.
func (a Addition) MarshalJSON() ([]byte, error) { return object(a) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (a *Addition) UnmarshalJSON(text []byte) error { return read(text, a) }

// MarshalJSON writes the fields as docs/control.md says.
func (f Found) MarshalJSON() ([]byte, error) { return object(f) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (f *Found) UnmarshalJSON(text []byte) error { return read(text, f) }

// MarshalJSON writes the fields as docs/control.md says.
func (t SearchedTopic) MarshalJSON() ([]byte, error) { return object(t) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (t *SearchedTopic) UnmarshalJSON(text []byte) error { return read(text, t) }

// MarshalJSON writes the fields as docs/control.md says.
func (m TopicMemory) MarshalJSON() ([]byte, error) { return object(m) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (m *TopicMemory) UnmarshalJSON(text []byte) error { return read(text, m) }

// MarshalJSON writes the fields as docs/control.md says.
func (u MemoryUse) MarshalJSON() ([]byte, error) { return object(u) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (u *MemoryUse) UnmarshalJSON(text []byte) error { return read(text, u) }

// MarshalJSON writes the fields as docs/control.md says.
func (f Folded) MarshalJSON() ([]byte, error) { return object(f) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (f *Folded) UnmarshalJSON(text []byte) error { return read(text, f) }

// MarshalJSON writes the fields as docs/control.md says.
func (i Ignored) MarshalJSON() ([]byte, error) { return object(i) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (i *Ignored) UnmarshalJSON(text []byte) error { return read(text, i) }

// MarshalJSON writes the fields as docs/control.md says.
func (p HistoryPage) MarshalJSON() ([]byte, error) { return object(p) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (p *HistoryPage) UnmarshalJSON(text []byte) error { return read(text, p) }

// MarshalJSON writes the fields as docs/control.md says.
func (h SearchedHistories) MarshalJSON() ([]byte, error) { return object(h) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (h *SearchedHistories) UnmarshalJSON(text []byte) error { return read(text, h) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Moved) MarshalJSON() ([]byte, error) { return object(m) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (m *Moved) UnmarshalJSON(text []byte) error { return read(text, m) }

// MarshalJSON writes the fields as docs/control.md says.
func (s Stay) MarshalJSON() ([]byte, error) { return object(s) }

// UnmarshalJSON reads them. The error names the fields that cannot be read.
func (s *Stay) UnmarshalJSON(text []byte) error { return read(text, s) }
