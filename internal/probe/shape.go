package probe

import (
	"math/rand/v2"
	"time"
)

// Shape is a kind of traffic.
type Shape string

// The shapes.
const (
	// Voice is a voice assistant: 9 bursts of 10 segments of 50 to 500 bytes, 300 ms apart, each answered by a few
	// bytes, and a reply of 750 bytes to the last (Tran 2019, section 4.4.2).
	Voice Shape = "voice"
	// VoiceQuiet is Voice without the intermediate replies.
	VoiceQuiet Shape = "voice-quiet"
	// Requests are 20 requests of 300 bytes, 100 ms apart, each answered by 10 KB.
	Requests Shape = "requests"
	// Stream is ten seconds of 500 kbit/s from the server, in messages of 1250 bytes.
	Stream Shape = "stream"
	// Bulk is a download of 5 MB.
	Bulk Shape = "bulk"
	// Page is a web page: a document of 40 KB, and then 24 objects of 2 to 80 KB that are requested together.
	Page Shape = "page"
)

// Shapes returns all shapes. A shape's index is its number on the wire.
func Shapes() []Shape { return []Shape{Voice, VoiceQuiet, Requests, Stream, Bulk, Page} }

// Measure returns the name and the unit of the values that exchanges of the shape measure (Record.Values).
func (s Shape) Measure() (name, unit string) {
	switch s {
	case Stream:
		return "lateness of messages", "ms"
	case Bulk:
		return "goodput", "Mbit/s"
	case Page:
		return "load time", "ms"
	default:
		return "delay of replies", "ms"
	}
}

// round is a request with its reply.
type round struct {
	after   time.Duration // time since the exchange began at which the request is sent, or later, after the reply before
	request []int         // sizes of the writes
	reply   int           // bytes
	// interval is the time between messages of the reply. If it is 0, the reply is sent at once.
	interval time.Duration
	message  int // bytes
	measured bool
}

func (r round) requestSize() (sum int) {
	for _, n := range r.request {
		sum += n
	}
	return sum
}

// The sizes of the shapes, in bytes.
const (
	voiceBursts, voiceSegments = 9, 10
	voiceLeast, voiceMost      = 50, 500
	voiceInterval              = 300 * time.Millisecond
	voiceContinue, voiceReply  = 25, 750 // 25 is "HTTP/1.1 100 Continue\r\n\r\n"

	requestCount, requestSize, answerSize = 20, 300, 10_000
	requestInterval                       = 100 * time.Millisecond

	streamMessage, streamCount = 1250, 500
	streamInterval             = 20 * time.Millisecond

	bulkSize = 5_000_000

	pageDocument, pageObjects   = 40_000, 24
	objectLeast, objectMost     = 2_000, 80_000
	firstRequest, objectRequest = 400, 120
)

// script returns the rounds of an exchange. Both ends get the same rounds from the same seed.
func (s Shape) script(seed uint64) []round {
	random := rand.New(rand.NewPCG(seed, 0))
	between := func(least, most int) int { return least + random.IntN(most-least+1) }
	switch s {
	case Voice, VoiceQuiet:
		rounds := make([]round, voiceBursts)
		for i := range rounds {
			rounds[i].after = time.Duration(i) * voiceInterval
			for range voiceSegments {
				rounds[i].request = append(rounds[i].request, between(voiceLeast, voiceMost))
			}
			if s == Voice {
				rounds[i].reply = voiceContinue
			}
		}
		rounds[voiceBursts-1].reply, rounds[voiceBursts-1].measured = voiceReply, true
		return rounds
	case Requests:
		rounds := make([]round, requestCount)
		for i := range rounds {
			rounds[i] = round{after: time.Duration(i) * requestInterval, request: []int{requestSize}, reply: answerSize, measured: true}
		}
		return rounds
	case Stream:
		return []round{{
			request: []int{requestSize}, reply: streamCount * streamMessage, interval: streamInterval, message: streamMessage, measured: true,
		}}
	case Bulk:
		return []round{{request: []int{requestSize}, reply: bulkSize, measured: true}}
	default:
		document := round{request: []int{firstRequest}, reply: pageDocument}
		objects := round{measured: true}
		for range pageObjects {
			objects.request = append(objects.request, objectRequest)
			objects.reply += between(objectLeast, objectMost)
		}
		return []round{document, objects}
	}
}

// length returns the time that the exchange takes on an ideal path.
func (s Shape) length() time.Duration {
	rounds := s.script(0)
	last := rounds[len(rounds)-1]
	if last.interval > 0 {
		return last.after + last.interval*time.Duration(last.reply/last.message)
	}
	return last.after
}
