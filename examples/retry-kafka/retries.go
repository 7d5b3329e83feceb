package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// retries says how often a message is tried, and how long it waits in between.
type retries struct {
	topic string // the handler's topic, to which failed messages come back
	dead  string // the topic for messages that failed each time
	tries int
	first time.Duration // wait after the first failure; it doubles up to most
	most  time.Duration

	delayed message.Publisher // keeps a message in Redis until its wait is over
	queue   message.Publisher // the queue itself
}

// addTo has failed messages of a handler come back to their topic, each after its own wait. Others
// do not wait for them. A relay has to publish what is due in Redis to the queue.
func (r retries) addTo(handler *message.Handler) error {
	dead, err := middleware.PoisonQueueWithFilter(r.queue, r.dead, isGivenUp)
	if err != nil {
		return err
	}
	retry, err := middleware.PoisonQueueWithFilter(r.delayed, r.topic, func(err error) bool { return !isGivenUp(err) })
	if err != nil {
		return err
	}
	backoff := middleware.DelayOnError{InitialInterval: r.first, Multiplier: 2, MaxInterval: r.most}
	handler.AddMiddleware(
		dead,
		retry,
		backoff.Middleware, // inside of retry, so that the copy carries the delay
		ownRetries,
		giveUpAfter(r.tries),
		middleware.Recoverer,
	)
	return nil
}

// errGivenUp means that a message failed on its last try.
var errGivenUp = errors.New("given up")

func isGivenUp(err error) bool { return errors.Is(err, errGivenUp) }

// triesKey is the metadata key for the number of tries that failed.
const triesKey = "tries"

// giveUpAfter counts the tries of a message. The error of the last one is errGivenUp.
func giveUpAfter(tries int) message.HandlerMiddleware {
	return func(handle message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := handle(msg)
			if err == nil {
				return produced, nil
			}
			failed, _ := strconv.Atoi(msg.Metadata.Get(triesKey)) // 0 without the key
			failed++
			msg.Metadata.Set(triesKey, strconv.Itoa(failed))
			if failed >= tries {
				err = fmt.Errorf("%w after %d tries: %w", errGivenUp, failed, err)
			}
			return nil, err
		}
	}
}

// ownRetries passes over messages that another handler of the topic has failed to handle. All
// groups of a topic get what comes back to it.
func ownRetries(handle message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		failed := msg.Metadata.Get(middleware.PoisonedHandlerKey)
		if failed != "" && failed != message.HandlerNameFromCtx(msg.Context()) {
			return nil, nil
		}
		return handle(msg)
	}
}
