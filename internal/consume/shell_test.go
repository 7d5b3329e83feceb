package consume

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestASettledMessageIsNoticedWhileAnotherIsOnOffer(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*message.Message) bool{
		"acked":  (*message.Message).Ack,
		"nacked": (*message.Message).Nack,
	} {
		for when, c := range map[string]struct{ pace, after, noticed time.Duration }{
			"soon by a quick consumer":       {0, 0, glance},
			"at once after a glance":         {0, 2 * glance, 0},
			"at once from a slow consumer's": {2 * glance, 0, 0},
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				inShell(t, Config{MaxInFlight: 2}, func(t *testing.T, s *shell) {
					s.publish(4)
					for range 2 { // then the pace is known
						msg := s.next()
						time.Sleep(c.pace)
						msg.Ack()
					}
					msg := s.next()
					synctest.Wait()
					time.Sleep(c.after)
					require.True(t, settle(msg))
					time.Sleep(c.noticed)
					synctest.Wait()
					require.Empty(t, s.machine.InHand())
				})
			})
		}
	}
}

func TestCloseTakesBackWhatIsOnOfferAndWaitsForWhatIsInHand(t *testing.T) {
	inShell(t, Config{MaxInFlight: 2}, func(t *testing.T, s *shell) {
		s.publish(3)
		first := s.next()
		synctest.Wait()
		s.Close()
		s.hasNone()
		require.Len(t, s.ready, 2)
		require.NoError(t, first.Context().Err())
		require.Empty(t, s.ended)
		began := time.Now()
		first.Ack()
		require.NoError(t, s.end())
		require.Zero(t, time.Since(began), "its ack waits for no others")
		require.Len(t, s.messages, 2)
	})
}

func TestASubscriptionThatLeavesWaitsForItsHandlersAndGivesItsShareBack(t *testing.T) {
	inShell(t, Config{MaxInFlight: 2, CloseTimeout: time.Second, Common: new(Common)}, func(t *testing.T, s *shell) {
		s.publish(3)
		first := s.next()
		synctest.Wait()
		s.Leave()
		s.hasNone()
		time.Sleep(10 * s.CloseTimeout)
		require.NoError(t, first.Context().Err())
		require.Empty(t, s.ended)
		require.Len(t, s.share.of.shares, 1)
		first.Ack()
		require.NoError(t, s.end())
		require.Empty(t, s.share.of.shares)
		require.Len(t, s.messages, 2)
	})
}

func TestAMessageThatCannotBeUnmarshaledIsADeadLetter(t *testing.T) {
	for name, c := range map[string]struct {
		unmarshal func() (*message.Message, error)
		reason    string
	}{
		"a panic":  {func() (*message.Message, error) { panic("odd") }, "unmarshal: the Unmarshaler panicked: odd"},
		"nil":      {func() (*message.Message, error) { return nil, nil }, "unmarshal: " + errNoMessage.Error()},
		"an error": {func() (*message.Message, error) { return message.NewMessage("1", nil), errors.New("odd") }, "unmarshal: odd"},
		"an end of its goroutine": {func() (*message.Message, error) { runtime.Goexit(); return nil, nil },
			"unmarshal: the Unmarshaler called runtime.Goexit"},
		"a typed nil error": {func() (*message.Message, error) { return nil, (*typedError)(nil) },
			"unmarshal: Error or Is of an error of type *consume.typedError panicked: " +
				"runtime error: invalid memory address or nil pointer dereference"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			inShell(t, Config{MaxInFlight: 2, Unmarshal: func(_ string, body []byte) (*message.Message, error) {
				if calls++; calls == 1 {
					return c.unmarshal()
				}
				return message.NewMessage(string(body), nil), nil
			}}, func(t *testing.T, s *shell) {
				s.publish(2)
				s.next().Ack()
				time.Sleep(time.Second)
				require.Equal(t, []nacked{{"00000000000000000000000001", "unmarshal", c.reason}}, s.nacks)
			})
		})
	}
}

type typedError struct{ text string }

func (e *typedError) Error() string { return e.text }

// hanging is an Unmarshaler that hangs for that long with the first message.
func hanging(d time.Duration) func(string, []byte) (*message.Message, error) {
	var calls atomic.Int32
	return func(_ string, body []byte) (*message.Message, error) {
		if calls.Add(1) == 1 {
			time.Sleep(d)
		}
		return message.NewMessage(string(body), nil), nil
	}
}

func TestAnUnmarshalerThatHangsLosesItsMessageLikeAHandler(t *testing.T) {
	t.Parallel()
	for name, deliveries := range map[string]int{"to be retried": 0, "for good": 1} {
		t.Run(name, func(t *testing.T) {
			log := &meddler{}
			log.does(func() {})
			inShell(t, Config{MaxInFlight: 2, MaxExtension: 2 * time.Second, Unmarshal: hanging(time.Minute), Logger: log,
				Options: queue.GroupOptions{MaxDeliveries: deliveries}}, func(t *testing.T, s *shell) {
				began := time.Now()
				s.publish(4)
				for _, id := range []string{"2", "3", "4"} {
					msg := s.next()
					require.Equal(t, "0000000000000000000000000"+id, msg.UUID)
					msg.Ack()
				}
				require.Equal(t, patience, time.Since(began), "the others wait for no longer")
				time.Sleep(modelLease + 2*time.Second - patience)
				synctest.Wait()
				s.change(func(f *server) { require.Len(t, f.nacks, 1) })
				require.Equal(t, "the Unmarshaler ran for longer than 5s (LeaseDuration and MaxExtension)", s.nacks[0].reason)
				texts := []string{"The Unmarshaler takes long for a message, others go on without it",
					"A handler or the Unmarshaler ran for too long, its message is delivered again"}
				if deliveries == 1 {
					texts[1] = "A message is dead-lettered"
				}
				s.next().Ack() // the fake server knows no limit, and delivers it again
				require.Equal(t, texts, log.texts)
				time.Sleep(time.Minute) // the Unmarshaler returns
				s.hasNone()
			})
		})
	}
}

func TestAMessageThatIsUnmarshaledLateIsHandedOut(t *testing.T) {
	t.Parallel()
	for name, inFlight := range map[string]int{"beside others": 2, "in order": 1} {
		t.Run(name, func(t *testing.T) {
			inShell(t, Config{MaxInFlight: inFlight, MaxExtension: modelLease, Unmarshal: hanging(modelLease + patience)}, func(t *testing.T, s *shell) {
				s.publish(3)
				time.Sleep(modelLease)
				if inFlight == 1 {
					s.hasNone()
				} else {
					s.next().Ack()
					s.next().Ack()
				}
				msg := s.next()
				require.Equal(t, "00000000000000000000000001", msg.UUID)
				time.Sleep(modelLease + patience)
				require.NoError(t, msg.Context().Err(), "its handler has as much time as others")
				msg.Ack()
				if inFlight == 1 {
					s.next().Ack()
					s.next().Ack()
				}
				time.Sleep(time.Second)
				require.Zero(t, s.left())
				require.Empty(t, s.nacks)
			})
		})
	}
}

func TestCloseWaitsForAnUnmarshalerAsForAHandler(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, returns, takes, timeout time.Duration }{
		"it returns in time":      {0, 5 * time.Second, 5 * time.Second, time.Minute},
		"it returns too late":     {0, time.Hour, time.Minute, time.Minute},
		"it was replaced before":  {2 * patience, 10 * time.Second, 10 * time.Second, time.Minute},
		"it was replaced in vain": {2 * patience, time.Hour, time.Minute, time.Minute},
		"it has no time at all":   {0, time.Hour, patience / 4, patience / 4},
	} {
		t.Run(name, func(t *testing.T) {
			inShell(t, Config{MaxInFlight: 2, CloseTimeout: c.timeout, Unmarshal: hanging(c.before + c.returns)}, func(t *testing.T, s *shell) {
				s.publish(1)
				time.Sleep(c.before)
				began := time.Now()
				s.Close()
				require.NoError(t, s.end())
				require.Equal(t, c.takes, time.Since(began))
				require.Equal(t, 1, s.left())
				require.Empty(t, s.nacks)
				s.change(func(f *server) {
					require.Equal(t, c.returns < c.timeout, len(f.ready) == 1, "it goes back if it can")
				})
				time.Sleep(c.returns)
			})
		})
	}
}

// The consumer waits for it all the time.
func TestAMessageIsNotHandedOutThatWasLostWhileItWasUnmarshaled(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(s *shell)
		next    bool
	}{
		"its lease ends":          {func(s *shell) { s.change(func(f *server) { f.lose() }) }, true},
		"the subscription closes": {func(s *shell) { s.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			inShell(t, Config{MaxInFlight: 2, Unmarshal: func(_ string, body []byte) (*message.Message, error) {
				if calls++; calls == 1 {
					time.Sleep(modelLease)
				}
				return message.NewMessage(string(body), nil), nil
			}}, func(t *testing.T, s *shell) {
				s.publish(1)
				c.happens(s)
				if c.next {
					s.told("", nil)
					time.Sleep(time.Second)
					s.publish(1)
					msg := s.next()
					require.Equal(t, "00000000000000000000000002", msg.UUID)
					msg.Ack()
				}
				time.Sleep(modelLease) // the Unmarshaler returns
			})
		})
	}
}

func TestSettledMessagesCountWhenCloseTimeoutIsOver(t *testing.T) {
	calls := 0
	inShell(t, Config{MaxInFlight: 3, CloseTimeout: patience / 4, Unmarshal: func(_ string, body []byte) (*message.Message, error) {
		if calls++; calls == 3 {
			time.Sleep(patience / 2) // so handOut cannot notice the ack
		}
		return message.NewMessage(string(body), nil), nil
	}}, func(t *testing.T, s *shell) {
		s.publish(3)
		running, acked := s.next(), s.next()
		ctx := running.Context()
		synctest.Wait()
		s.Close()
		require.True(t, acked.Ack())
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), queue.ErrClosed)
		require.NoError(t, s.end())
		require.Equal(t, 2, s.left(), "the one that was acked is gone")
		s.change(func(f *server) { require.Equal(t, 1, f.counted["acked"]) })
	})
}

// logged returns what is logged as errors since the last call, as text, error, and fields.
func logged(log *watermill.CaptureLoggerAdapter, seen *int) (lines []string) {
	all := log.Captured()[watermill.ErrorLogLevel]
	for _, line := range all[*seen:] {
		lines = append(lines, fmt.Sprint(line.Msg, " | ", line.Err, " | ", line.Fields))
	}
	*seen = len(all)
	return lines
}

func TestWhatIsGivenUpAtCloseTimeoutIsLoggedAndCounted(t *testing.T) {
	log, seen := watermill.NewCaptureLogger(), 0
	inShell(t, Config{MaxInFlight: 3, CloseTimeout: time.Second, Logger: log}, func(t *testing.T, s *shell) {
		s.publish(5)
		acksLate, nacksLate, acksInTime := s.next(), s.next(), s.next()
		s.Close()
		acksInTime.Ack()
		began := time.Now()
		require.NoError(t, s.end())
		require.Equal(t, time.Second, time.Since(began))
		s.change(func(f *server) { require.Equal(t, 2, f.counted["given_up"]) })
		const text = "A message was not settled within CloseTimeout, it is delivered again when its lease ends | not settled within CloseTimeout | "
		require.Equal(t, []string{
			text + "map[limit:1s message_id:" + acksLate.UUID + " message_uuid:" + acksLate.UUID + "]",
			text + "map[limit:1s message_id:" + nacksLate.UUID + " message_uuid:" + nacksLate.UUID + "]",
		}, logged(log, &seen), "before Run ends")
		s.change(func(f *server) { require.Len(t, f.ready, 2, "what was not handed out goes back") })

		time.Sleep(100 * time.Millisecond)
		acksLate.Ack()
		nacksLate.Nack()
		time.Sleep(time.Second)
		require.Equal(t, []string{
			"A handler acked its message after CloseTimeout, in vain: it is delivered again | not settled within CloseTimeout | " +
				"map[limit:1s message_id:" + acksLate.UUID + " message_uuid:" + acksLate.UUID + "]",
		}, logged(log, &seen))
		s.change(func(f *server) { require.Equal(t, 2, f.counted["given_up"]) })
		require.Equal(t, 4, s.left(), "a late ack changes nothing")
		time.Sleep(10 * modelLease)
		require.Empty(t, logged(log, &seen), "once")
	})
}

// The messages' ids are 1 to 6. The first was nacked before the contexts ended, which the hand-over
// could not notice.
func TestANackAfterTheContextsEndCountsNoDelivery(t *testing.T) {
	const timeout = 9 * time.Second
	calls := 0
	inShell(t, Config{MaxInFlight: 7, CloseTimeout: timeout, Options: queue.GroupOptions{MaxDeliveries: 1}, Unmarshal: func(_ string, body []byte) (*message.Message, error) {
		if calls++; calls == 7 {
			time.Sleep(timeout/3 + patience/2) // so handOut cannot notice the first nack
		}
		return message.NewMessage(string(body), nil), nil
	}}, func(t *testing.T, s *shell) {
		s.publish(7)
		before, back, delayed, asked, postponed, acked := s.next(), s.next(), s.next(), s.next(), s.next(), s.next()
		contexts := make([]context.Context, 0, 6)
		for _, msg := range []*message.Message{back, delayed, asked, postponed, acked} {
			contexts = append(contexts, msg.Context())
		}
		began := time.Now()
		s.Close()
		time.Sleep(timeout/3 - time.Millisecond)
		require.NoError(t, back.Context().Err())
		before.Nack()
		for _, ctx := range contexts {
			<-ctx.Done()
			require.Equal(t, timeout/3, time.Since(began))
			require.ErrorIs(t, context.Cause(ctx), queue.ErrClosed)
			require.EqualError(t, context.Cause(ctx), "subscription: closed")
		}
		require.NotErrorIs(t, context.Cause(before.Context()), queue.ErrClosed)
		delayed.Metadata.Set(meta.DelayKey, "1h")
		FromContext(asked.Context()).DieWith("hopeless")
		FromContext(postponed.Context()).Postpone(time.Minute)
		for _, msg := range []*message.Message{back, delayed, asked, postponed} {
			msg.Nack()
		}
		time.Sleep(timeout/3 - time.Second)
		acked.Ack()
		require.NoError(t, s.end())
		told := map[string]string{}
		s.change(func(f *server) {
			for _, n := range f.nacks {
				told[n.id[25:]] = n.delay
			}
			require.Zero(t, f.messages[back.UUID].deliveries)
			require.Zero(t, f.counted["given_up"])
		})
		require.Equal(t, map[string]string{"1": "0", "2": "+0", "3": "+0", "4": "asked", "5": "+60000"}, told)
		require.Equal(t, 6, s.left(), "the ack counts")
	})
}

func TestClosingWaitsForRedisOnlyIfSettlementsAreNotAnswered(t *testing.T) {
	t.Parallel()
	const timeout = 29 * time.Second
	away := map[string]func(*server){
		"it hangs":   func(f *server) { f.slow = time.Hour },
		"it refuses": func(f *server) { f.failing = errNoServer },
	}
	for name, c := range map[string]struct {
		begins func(s *shell) // while Redis answers
		closes func(s *shell) // while it does not
		takes  time.Duration  // from Close to the end of Run
		err    error
	}{
		"nothing was handed out":                 {func(*shell) {}, func(*shell) {}, lastTries, nil},
		"messages were claimed":                  {func(s *shell) { s.publish(3) }, func(*shell) {}, lastTries, nil},
		"a claim is under way":                   {func(*shell) {}, func(s *shell) { s.publish(3) }, lastTries, nil},
		"all are settled":                        {func(s *shell) { s.publish(2); s.next().Ack(); s.next().Nack(); time.Sleep(time.Second) }, func(*shell) {}, lastTries, nil},
		"one is acked":                           {func(s *shell) { s.publish(1); s.first = s.next() }, func(s *shell) { s.first.Ack() }, timeout + time.Second/2, ErrUntold},
		"one is nacked":                          {func(s *shell) { s.publish(1); s.first = s.next() }, func(s *shell) { s.first.Nack() }, timeout + time.Second/2, ErrUntold},
		"one is in hand until its lease is lost": {func(s *shell) { s.publish(1); s.first = s.next() }, func(*shell) {}, modelLease + time.Millisecond, nil},
	} {
		for how, leaves := range away {
			t.Run(name+", "+how, func(t *testing.T) {
				inShell(t, Config{MaxInFlight: 2, CloseTimeout: timeout}, func(t *testing.T, s *shell) {
					c.begins(s)
					s.change(leaves)
					c.closes(s)
					synctest.Wait()
					began := time.Now()
					s.Close()
					require.ErrorIs(t, s.end(), c.err)
					// The mailbox tries again at random times, which may be a moment before.
					require.InDelta(t, c.takes, time.Since(began), float64(time.Millisecond))
					require.Equal(t, c.err != nil, s.Owes())
				})
			})
		}
	}
}

// A server that answers late has all the time.
func TestClosingHasTheTimeThatASlowRedisNeeds(t *testing.T) {
	inShell(t, Config{MaxInFlight: 2}, func(t *testing.T, s *shell) {
		s.publish(4)
		msg := s.next()
		s.change(func(f *server) { f.slow = lastTries - time.Millisecond })
		s.Close()
		time.Sleep(time.Second)
		msg.Ack()
		require.NoError(t, s.end())
		s.change(func(f *server) { require.Len(t, f.ready, 3, "what was not handed out goes back") })
	})
}

// A subscription that leaves is in no hurry.
func TestLeavingWaitsForRedis(t *testing.T) {
	inShell(t, Config{MaxInFlight: 2}, func(t *testing.T, s *shell) {
		s.publish(3)
		s.change(func(f *server) { f.failing = errNoServer })
		s.Leave()
		time.Sleep(modelLease / 2)
		s.change(func(f *server) { f.failing = nil })
		require.NoError(t, s.end())
		s.change(func(f *server) { require.Len(t, f.ready, 3) })
	})
}

func TestExpiredMessagesThatAreDroppedTogetherAreLoggedOnce(t *testing.T) {
	expired := func(_ string, body []byte) (*message.Message, error) {
		msg := message.NewMessage(string(body), nil)
		msg.Metadata.Set(meta.ExpiresAtKey, "2000-01-01T00:00:00Z")
		msg.Metadata.Set(meta.OnExpiryKey, meta.Drop)
		return msg, nil
	}
	log := watermill.NewCaptureLogger()
	inShell(t, Config{MaxInFlight: 10, Logger: log, Unmarshal: expired}, func(t *testing.T, s *shell) {
		numbers := func() (all []any) {
			for _, line := range log.Captured()[watermill.InfoLogLevel] {
				require.Equal(t, "Messages had expired and were dropped", line.Msg)
				all = append(all, line.Fields["messages"])
			}
			return all
		}
		s.publish(1000)
		time.Sleep(10 * time.Second)
		require.Equal(t, []any{1000}, numbers())
		for range 150 {
			s.publish(1)
			time.Sleep(noneFor / 2)
		}
		require.Len(t, numbers(), 2, "while there are more, a line a minute")
		s.publish(1)
		synctest.Wait()
		s.Close()
		require.NoError(t, s.end())
		total := 0
		for _, n := range numbers() {
			total += n.(int)
		}
		require.Equal(t, 1151, total)
	})
}

func TestAMessageThatIsTakenFromItsHandlerIsLoggedAsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		happens func(s *shell, msg *message.Message)
		text    string
		limit   time.Duration
	}{
		"it loses its lease": {
			func(s *shell, msg *message.Message) { s.change(func(f *server) { delete(f.messages, msg.UUID) }) },
			"The lease of a message was lost while its handler ran | lease lost", modelLease,
		},
		"it runs for too long": {
			func(*shell, *message.Message) {},
			"A handler or the Unmarshaler ran for too long, its message is delivered again | " +
				"the handler ran for longer than 5s (LeaseDuration and MaxExtension)", modelLease + 2*time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			log, seen := watermill.NewCaptureLogger(), 0
			inShell(t, Config{MaxInFlight: 2, MaxExtension: 2 * time.Second, Logger: log}, func(t *testing.T, s *shell) {
				s.publish(1)
				msg := s.next()
				c.happens(s, msg)
				<-msg.Context().Done()
				synctest.Wait()
				require.Equal(t, []string{
					fmt.Sprintf("%s | map[limit:%v message_id:%s message_uuid:%s]", c.text, c.limit, msg.UUID, msg.UUID),
				}, logged(log, &seen))
			})
		})
	}
}

func TestALeaseEndsWhileRedisHangsOrFails(t *testing.T) {
	for name, change := range map[string]func(s *server){
		"it hangs": func(s *server) { s.slow = 25 * time.Second },
		"it fails": func(s *server) { s.failing = errNoServer },
	} {
		t.Run(name, func(t *testing.T) {
			inShell(t, Config{MaxInFlight: 2}, func(t *testing.T, s *shell) {
				s.publish(2)
				began := time.Now()
				msg := s.next()
				synctest.Wait()
				s.change(change)
				<-msg.Context().Done()
				require.ErrorIs(t, context.Cause(msg.Context()), ErrLeaseLost)
				require.Equal(t, modelLease+time.Millisecond, time.Since(began))
				s.hasNone()
				s.change(func(f *server) { f.slow, f.failing = 0, nil })
				for s.left() > 0 {
					s.next().Ack()
					time.Sleep(time.Second)
				}
			})
		})
	}
}

func TestLateAnswersAreLoggedOnce(t *testing.T) {
	log := watermill.NewCaptureLogger()
	inShell(t, Config{MaxInFlight: 2, Logger: log}, func(t *testing.T, s *shell) {
		s.change(func(f *server) { f.slow = modelLease + time.Second })
		s.publish(2)
		time.Sleep(time.Minute)
		s.change(func(f *server) { f.slow = 0 })
		logged := log.Captured()[watermill.ErrorLogLevel]
		require.Len(t, logged, 1)
		require.ErrorIs(t, logged[0].Err, errLate)
		require.Equal(t, 2, logged[0].Fields["messages"])
	})
}

// A message that was acked is not given up, and one that is waits as it said when it came: its
// handler may write to its metadata.
func TestAHandlerThatRunsForTooLongFails(t *testing.T) {
	calls := 0
	inShell(t, Config{MaxInFlight: 3, MaxExtension: time.Second, Unmarshal: func(_ string, body []byte) (*message.Message, error) {
		if calls++; calls == 3 {
			time.Sleep(patience * 9 / 10) // so handOut cannot notice the ack
		}
		msg := message.NewMessage(string(body), nil)
		msg.Metadata.Set(meta.BackoffKey, "7s")
		return msg, nil
	}}, func(t *testing.T, s *shell) {
		s.publish(2)
		running, acked := s.next(), s.next()
		synctest.Wait()
		delete(running.Metadata, meta.BackoffKey)
		began := time.Now()
		time.Sleep(modelLease + patience/2)
		s.publish(1)
		require.True(t, acked.Ack())
		<-running.Context().Done()
		require.ErrorIs(t, context.Cause(running.Context()), ErrLeaseLost)
		require.InDelta(t, modelLease+time.Second, time.Since(began), float64(10*time.Millisecond))
		synctest.Wait()
		require.Len(t, s.nacks, 1)
		require.Equal(t, nacked{running.UUID, "7000", "the handler ran for longer than 4s (LeaseDuration and MaxExtension)"}, s.nacks[0])
		require.NoError(t, s.next().Context().Err())
		require.Equal(t, 2, s.left())
	})
}

// meddler is a logger that does something at each line.
type meddler struct {
	watermill.NopLogger
	mu     sync.Mutex
	texts  []string
	meddle func()
}

func (m *meddler) Error(text string, _ error, _ watermill.LogFields) { m.log(text) }
func (m *meddler) Info(text string, _ watermill.LogFields)           { m.log(text) }

func (m *meddler) log(text string) {
	m.mu.Lock()
	m.texts = append(m.texts, text)
	meddle := m.meddle
	m.mu.Unlock()
	meddle()
}

func (m *meddler) does(meddle func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meddle = meddle
}

func TestALoggerMayCallAnything(t *testing.T) {
	log := &meddler{}
	calls := 0
	inShell(t, Config{MaxInFlight: 5, MaxExtension: 4 * time.Second, Options: queue.GroupOptions{MaxDeliveries: 1}, Logger: log,
		Unmarshal: func(_ string, body []byte) (*message.Message, error) {
			if calls++; calls == 1 {
				return nil, errNoMessage
			}
			return message.NewMessage(string(body), nil), nil
		}}, func(t *testing.T, s *shell) {
		log.does(func() { s.free("the logger") })
		s.publish(5)
		dead, lost, mine := s.next(), s.next(), s.next()
		log.does(func() {
			s.free("the logger")
			mine.Ack()
			require.ErrorIs(t, context.Cause(dead.Context()), errSettled)
			_ = FromContext(mine.Context()).Info()
		})
		dead.Nack()
		s.change(func(f *server) { delete(f.messages, lost.UUID) })
		<-lost.Context().Done()
		<-mine.Context().Done()
		s.change(func(f *server) { f.failing = errNoServer })
		time.Sleep(2 * time.Second)
		s.change(func(f *server) { f.failing = nil })
		s.next()
		time.Sleep(10 * time.Second)
		s.change(func(f *server) { f.lose() })
		time.Sleep(10 * time.Second)
		log.does(s.Close)
		s.change(func(f *server) { f.failing = errNoServer })
		require.NoError(t, s.end())
		require.Equal(t, []string{
			"A message cannot be unmarshaled and is dead-lettered",
			"A message is dead-lettered",
			"The lease of a message was lost while its handler ran",
			"Redis does not answer as it should, trying again",
			"Redis answers again",
			"A message is dead-lettered", // its handler has run for too long
			"The consumer group is gone from Redis, with all that it held; it is registered again",
			"Redis does not answer as it should, trying again",
			"Redis does not answer at the end, and knows all settlements; messages that were not handed out are delivered again when their leases end",
		}, log.texts)
	})
}

// Bodies would stay in memory until as many messages are claimed again.
func TestRoomForClaimsKeepsNoBodies(t *testing.T) {
	inShell(t, Config{MaxInFlight: 100}, func(t *testing.T, s *shell) {
		s.publish(100)
		room := s.link.rooms[0]
		require.Equal(t, make([]Message, 100), room[:100])
		for range 100 {
			msg := s.next()
			require.Nil(t, FromContext(msg.Context()).inHand.Body)
			msg.Ack()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, cap(s.link.rooms[0]), "nothing is ready")
	})
}

// lateContext is a context that has ended, and that nobody who waits for its end knows of yet.
type lateContext struct {
	context.Context
	ended atomic.Bool
}

func (c *lateContext) Done() <-chan struct{} { return nil }

func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

func TestNothingIsTakenWhenTheContextHasEnded(t *testing.T) {
	ctx := &lateContext{Context: t.Context()}
	inShellOf(t, ctx, Config{MaxInFlight: 1}, func(t *testing.T, s *shell) {
		s.publish(40)
		for range 20 { // then more are claimed in advance
			msg := s.next()
			time.Sleep(10 * time.Microsecond)
			msg.Ack()
		}
		msg := s.next()
		late := make(chan string, 100)
		go func() {
			for msg := range s.Messages() {
				late <- msg.UUID
			}
			close(late)
		}()
		synctest.Wait() // the consumer waits for the next message
		ctx.ended.Store(true)
		msg.Ack()
		for id := range late {
			t.Errorf("%s was handed out", id)
		}
		require.NoError(t, s.end())
	})
}

func TestALostDeliveryEndsBeforeAQuestionIsAnswered(t *testing.T) {
	inShell(t, Config{MaxInFlight: 2}, func(t *testing.T, s *shell) {
		s.publish(1)
		msg := s.next()
		s.step(func(m *Machine, _ time.Time) Effects {
			m.lose(func(*Message) bool { return true })
			e := m.effects()
			e.Answered = []func(){func() { require.ErrorIs(t, context.Cause(msg.Context()), ErrLeaseLost) }}
			return e
		})
	})
}
