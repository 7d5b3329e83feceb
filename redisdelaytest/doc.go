// Package redisdelaytest is for tests of programs that use watermill-redisdelay: a Redis in the process of
// the test, whose clock stands still until the test moves it, so that a delay of a day takes no time at all.
//
//	server := redisdelaytest.Start(t)
//	app := newApp(server.Client())
//	app.PlaceOrder("123") // publishes with a delay of 15 minutes
//
//	server.RequireScheduled(t, "unpaid-orders", server.Now().Add(15*time.Minute))
//	server.Advance(15 * time.Minute)
//	msg := server.Receive(t, messages)
//
// What falls due by [Server.Advance] is ready for its consumers when that returns, and what became too late by it
// comes no more; time that merely passes makes nothing due and nothing too late. Consumers run as they
// always do, in goroutines of their own and in real time: what a handler does is to be waited for, by
// [Server.AwaitScheduled], [Server.AwaitRetrying] or [Server.AwaitDrained], or by what the program itself offers.
//
// The clock of the program does not move. An instant that it makes from [time.Now], for redisdelay.DelayUntil or
// redisdelay.ExpireAt, is in the server's past after an Advance: the message is due at once, or too late. Give the program
// [Server.Now] as its clock. Delays, as of redisdelay.DelayFor, do not depend on it.
//
// The server is miniredis. It is not the real one: it persists nothing, has no limits and is slower.
package redisdelaytest
