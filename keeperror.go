package redisdelay

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
)

// KeepError is a middleware that has the error of the handler kept with the message, if it is nacked: with its
// retry, and with its dead letter. admin.Place.Reason shows it. About a kilobyte of it is kept.
//
//	router.AddMiddleware(redisdelay.KeepError)
//
// It changes nothing of what the handler returns. Add it before the middleware whose errors it is to see: in
// front of Watermill's Recoverer, it keeps panics too. What a PoisonQueue takes is acked, and not kept.
func KeepError(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if d := consume.Of(msg); d != nil {
			text := ""
			if err != nil {
				text = err.Error()
			}
			d.FailWith(text)
		}
		return produced, err
	}
}
