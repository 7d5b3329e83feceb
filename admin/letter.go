package admin

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
)

// Letter is a dead letter as it is exported: a line of "redisdelay dead export", and of the export
// of the web page. "redisdelay dead import" reads it, byte for byte.
type Letter struct {
	ID         string            `json:"id"`
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	UUID       string            `json:"uuid"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Payload    []byte            `json:"payload,omitempty"`
	DiedAt     time.Time         `json:"died_at"`
	Deliveries int               `json:"deliveries"`
	Reason     string            `json:"reason"`
}

// Letter returns a message of List with State Dead as it is exported from a topic and group. A
// message with Err cannot be exported.
func (m Message) Letter(topic, group string) Letter {
	l := Letter{ID: m.ID, Topic: topic, Group: group, UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload}
	for _, p := range m.Places {
		if p.State == Dead && (p.Group == group || p.Group == "") {
			l.DiedAt, l.Deliveries, l.Reason = p.At, p.Deliveries, p.Reason
		}
	}
	return l
}

// MarshalJSON writes texts that are not UTF-8 in base64. It returns no error.
func (l Letter) MarshalJSON() ([]byte, error) {
	type plain Letter
	return jsontext.Object(plain(l))
}

// UnmarshalJSON reads what MarshalJSON writes. It returns an error for other JSON.
func (l *Letter) UnmarshalJSON(text []byte) error {
	type plain Letter
	return jsontext.Read(text, (*plain)(l))
}
