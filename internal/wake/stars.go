package wake

// stars are the messages to all receivers that serveStars has not begun with.
type stars struct {
	came      bool
	questions map[string]struct{} // channels that wait for an answer
	serving   bool                // serveStars runs
}

// answers are the channels whose questions are to be answered now.
type answers struct {
	to     map[string]struct{}
	giving bool // giveAnswers runs
}

// mostQuestions is how many channels wait at most until all have looked, and then for their answer.
// More get none.
const mostQuestions = 100

// deliverToAll has serveStars wake all receivers, and then answer on the channel unless it is "".
func (m *Mailbox) deliverToAll(channel string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stars.came = true
	if channel != "" && len(m.stars.questions) < mostQuestions {
		if m.stars.questions == nil {
			m.stars.questions = map[string]struct{}{}
		}
		m.stars.questions[channel] = struct{}{}
	}
	if !m.stars.serving {
		m.stars.serving = true
		m.serving.Go(m.serveStars)
	}
	select {
	case m.another <- struct{}{}:
	default:
	}
}

// takeStars returns the channels that wait for an answer. If no message has come to all receivers,
// came is false, and serveStars has to end.
func (m *Mailbox) takeStars() (questions map[string]struct{}, came bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	questions, came = m.stars.questions, m.stars.came
	m.stars = stars{serving: came}
	select {
	case <-m.another:
	default:
	}
	return questions, came
}

// serveStars wakes all receivers for the messages that came to all of them, and has the questions
// among these answered, until there are none. A message that comes while receivers look wakes them
// again. Its question is answered after they have looked once more.
func (m *Mailbox) serveStars() {
	for {
		questions, came := m.takeStars()
		if !came {
			return
		}
		if len(questions) == 0 {
			m.wakeAll(nil)
			continue
		}
		looked := make(chan struct{})
		m.wakeAll(func() { close(looked) })
		for waiting := true; waiting; {
			select {
			case <-looked:
				waiting = false
			case <-m.another:
				m.wakeAll(nil)
			case <-m.running.Done():
				return
			}
		}
		m.answer(questions)
	}
}

// answer has giveAnswers answer questions. It waits for no server, which may hang.
func (m *Mailbox) answer(questions map[string]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers.to == nil {
		m.answers.to = map[string]struct{}{}
	}
	for channel := range questions {
		if len(m.answers.to) < mostQuestions {
			m.answers.to[channel] = struct{}{}
		}
	}
	if !m.answers.giving {
		m.answers.giving = true
		go m.giveAnswers()
	}
}

// giveAnswers answers questions, one after the other, until there are none or the mailbox is
// closed. Nobody waits for its end, which may come when the client gives up a call. An answer may
// get lost, because the process that asked has a timeout.
func (m *Mailbox) giveAnswers() {
	for {
		m.mu.Lock()
		var channel string
		for channel = range m.answers.to {
			break
		}
		if len(m.answers.to) == 0 || m.running.Err() != nil {
			m.answers = answers{}
			m.mu.Unlock()
			return
		}
		delete(m.answers.to, channel)
		m.mu.Unlock()
		_, _ = publish(m.running, m.client, channel)
	}
}
