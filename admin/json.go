package admin

import "github.com/redisdelay/watermill-redisdelay/internal/jsontext"

// object returns a struct as a JSON object that people and scripts read: see jsontext.Object.
func object(v any) ([]byte, error) { return jsontext.Object(v) }

// MarshalJSON writes the fields as docs/control.md says.
func (s Stats) MarshalJSON() ([]byte, error) { return object(s) }

// MarshalJSON writes the fields as docs/control.md says.
func (g GroupStats) MarshalJSON() ([]byte, error) { return object(g) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Removal) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Pause) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Readiness) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (t TopicReadiness) MarshalJSON() ([]byte, error) { return object(t) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Message) MarshalJSON() ([]byte, error) { return object(m) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Place) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Page) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (b Bucket) MarshalJSON() ([]byte, error) { return object(b) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Progress) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (r DeadReasons) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (r DeadReason) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (f Finding) MarshalJSON() ([]byte, error) { return object(f) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Report) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Repaired) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Mending) MarshalJSON() ([]byte, error) { return object(m) }
