package bus

import (
	"fmt"
	"strings"
)

const (
	fromPrefix  = "dcol.from."
	toPrefix    = "dcol.to."
	allPrefix   = "dcol.all."
	inboxPrefix = "_INBOX."
)

// MaxPayload is the size in bytes of the largest message, in both directions. Snapshots are sent in parts.
const MaxPayload = 64 << 10

// checkTopic returns an error unless topic consists of words of a-z, 0-9 and '-' with dots between them. So no topic
// contains a wildcard or leaves its place in the subject.
func checkTopic(topic string) error {
	for word := range strings.SplitSeq(topic, ".") {
		if word == "" || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return fmt.Errorf("the topic %q is not words of a-z, 0-9 and '-' with dots between", topic)
		}
	}
	return nil
}

// sender splits the subject of a message that a member published.
func sender(subject string) (member, topic string, ok bool) {
	rest, ok := strings.CutPrefix(subject, fromPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ".")
}

// inbox returns the prefix of the subjects at which a member gets its answers.
func inbox(member string) string { return inboxPrefix + member }

// isInbox reports whether an answer to subject reaches only the member. The member chooses the subject. If a
// coordinator answered to any subject, the member could use the coordinator's permissions.
func isInbox(subject, member string) bool { return strings.HasPrefix(subject, inbox(member)+".") }
