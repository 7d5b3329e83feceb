package redisdelay

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// KeepError is a middleware that keeps the error of the handler with a nacked message: with its
// retry, and with its dead letter. admin.Place.Reason shows it. About a kilobyte of it is kept.
//
//	router.AddMiddleware(redisdelay.KeepError)
//
// It returns the results of the handler unchanged. Add it before the middleware whose errors it
// shall keep: in front of Watermill's Recoverer, it keeps panics too. A PoisonQueue acks the
// message, so its error is not kept.
func KeepError(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if d := consume.Of(msg); d != nil {
			text := ""
			if err != nil {
				text = guard.Sound(err).Error()
			}
			d.FailWith(text)
		}
		return produced, err
	}
}
