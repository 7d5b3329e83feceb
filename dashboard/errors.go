package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

var (
	errNoPage   = &refusal{http.StatusNotFound, "There is no such page."}
	errReadOnly = &refusal{http.StatusForbidden, "You may look, but not change anything here."}
)

// bad returns the error of a form that is filled in wrongly.
func bad(text string) error { return &refusal{http.StatusBadRequest, text} }

// explained is an error in words for people.
type explained struct {
	Status      int
	Title, Text string
	Hint        string // what to do
	Detail      string // the error itself
}

// explain returns an error in words for people.
func explain(err error) explained {
	said := (*refusal)(nil)
	switch {
	case errors.As(err, &said):
		titles := map[int]string{http.StatusNotFound: "Not found", http.StatusForbidden: "Not allowed", http.StatusBadRequest: "That did not work"}
		e := explained{Status: said.status, Title: titles[said.status], Text: said.text}
		if e.Title == "" {
			e.Title = "That did not work"
		}
		return e
	case errors.Is(err, admin.ErrNoMessage):
		return explained{http.StatusNotFound, "Not found", "There is no such message.", "What is known: " + texts.Ended + ".", err.Error()}
	case errors.Is(err, admin.ErrNotFound):
		return explained{http.StatusNotFound, "Not found", "It is not in Redis.",
			"A topic or a group may have been removed, or has another name.", err.Error()}
	case errors.Is(err, admin.ErrTooLate):
		return explained{http.StatusConflict, "Too late", "The message no longer waits.", "It is ready, in a consumer's hands, or a dead letter by now, in some group.", err.Error()}
	case errors.Is(err, admin.ErrPastExpiry):
		return explained{http.StatusConflict, "Beyond its expiry", "The message would be due when it is too late for it.",
			"Choose an earlier time, or cancel the message.", err.Error()}
	case errors.Is(err, admin.ErrForbidden):
		return explained{http.StatusBadGateway, "Redis refuses", "The Redis user of this program may not do that.",
			"The details name the rights that it needs.", err.Error()}
	case errors.Is(err, admin.ErrServerFull):
		return explained{http.StatusBadGateway, "Redis is full", "Redis is at its maxmemory, and accepts nothing that takes memory.",
			"Purge dead letters that nobody needs, or give Redis more memory.", err.Error()}
	case errors.Is(err, admin.ErrLayout):
		return explained{http.StatusBadGateway, "Another version", "The topic was written by another version of the library.", "", err.Error()}
	case errors.Is(err, admin.ErrTopicMode):
		return explained{http.StatusConflict, "Not with a stream", "A topic with a Redis Stream does not allow that.", "", err.Error()}
	case errors.Is(err, admin.ErrExists):
		return explained{http.StatusConflict, "The name is taken", "Another message has this delay ID now.", "", err.Error()}
	case errors.Is(err, admin.ErrInvalidArgument), errors.Is(err, admin.ErrInvalidTopic):
		return explained{http.StatusBadRequest, "That did not work", "Something in the address or in the form is wrong.", "", err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return explained{http.StatusGatewayTimeout, "Redis is slow", "Redis did not answer in time.", "Reload the page in a moment.", err.Error()}
	case strings.Contains(err.Error(), "cursor"):
		return explained{http.StatusBadRequest, "That did not work", "The address is not one of a page.", "", err.Error()}
	default:
		return explained{http.StatusBadGateway, "Redis does not answer", "Redis does not answer, or not as it should.",
			"Is the server up, and can this program reach it? The page goes on by itself when it does.", err.Error()}
	}
}
