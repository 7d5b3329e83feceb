package faulttest

import (
	"sync"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// tokenKey is the metadata key for the token of a message's lease. It is not part of the checked
// contents.
const tokenKey = "_watermill_faulttest_token"

// tokens gives handlers the token of their message's lease, which no API does. The wire sees the
// body together with the token, and the Unmarshaler gets the same memory.
type tokens struct {
	redisdelay.BinaryMarshaler
	mu     sync.Mutex
	leases map[*byte]string // by the address of a body
}

func (t *tokens) put(body []byte, token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leases[unsafe.SliceData(body)] = token
}

// Unmarshal unmarshals like BinaryMarshaler, and adds the token.
func (t *tokens) Unmarshal(topic string, body []byte) (*message.Message, error) {
	at := unsafe.SliceData(body)
	t.mu.Lock()
	token := t.leases[at]
	delete(t.leases, at)
	t.mu.Unlock()
	msg, err := t.BinaryMarshaler.Unmarshal(topic, body)
	if err == nil && token != "" {
		msg.Metadata.Set(tokenKey, token)
	}
	return msg, err
}

func (t *tokens) of(msg *message.Message) string { return msg.Metadata.Get(tokenKey) }
