// Package redisdelaytest is for tests of programs that use watermill-redisdelay. It runs a Redis
// server in the process of the test. The server's clock stands still until the test moves it, so
// that a test of a one-day delay takes no time.
//
//	server := redisdelaytest.Start(t)
//	app := newApp(server.Client())
//	app.PlaceOrder("123") // publishes with a delay of 15 minutes
//
//	server.RequireScheduled(t, "unpaid-orders", server.Now().Add(15*time.Minute))
//	server.Advance(15 * time.Minute)
//	msg := server.Receive(t, messages)
//
// When [Server.Advance] returns, all messages that became due are ready, and messages that expired
// are no longer delivered. Schedules of package periodic move with the clock: a year of a nightly
// schedule takes about a second. Real time makes no message due and expires none. Consumers run in
// real time, in their own goroutines. So wait for the effects of a handler, with
// [Server.AwaitScheduled], [Server.AwaitRetrying], [Server.AwaitDrained], or by means of the
// program.
//
// The tokens of a limit (SubscriberConfig.Limit) come by the server's clock too. A lease that goes
// back unused may lose its token. So move the clock until the messages have come, not just as far
// as their number asks for.
//
// The clock of the program does not move. After an Advance, an instant from [time.Now] is in the
// server's past. With redisdelay.DelayUntil or redisdelay.ExpireAt, the message is then due at once
// or expired. Give the program [Server.Now] as its clock. Delays, as of
// redisdelay.DelayFor, do not depend on the program's clock.
//
// The server is miniredis, not a real Redis. It stores nothing on disk, has no limits and is
// slower.
package redisdelaytest
