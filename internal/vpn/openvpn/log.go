package openvpn

import (
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
)

// Flags of a log line (OpenVPN: src/openvpn/error.h).
const (
	flagFatal    = 1 << 4
	flagNonfatal = 1 << 5
	flagWarn     = 1 << 6
)

// logLine is a line that openvpn writes with machine-readable-output.
type logLine struct {
	flags uint64
	text  string
}

// parseLog reads "1795235904.199454 40 WARNING: ...". What is not of that form, such as a word of
// the C library's, is taken for a warning.
func parseLog(line string) logLine {
	if stamp, rest, ok := strings.Cut(line, " "); ok && isStamp(stamp) {
		flags, text, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseUint(flags, 16, 64); err == nil {
			return logLine{flags: n, text: text}
		}
	}
	return logLine{flags: flagWarn, text: line}
}

// parseLogNotice reads ">LOG:time,flags,text", whose flags are letters. The log comes to us twice: in
// this way in one order with all other notices, on its standard output from the first line to the last.
func parseLogNotice(text string) (logLine, bool) {
	fields := strings.SplitN(text, ",", 3)
	if len(fields) < 3 {
		return logLine{}, false
	}
	l := logLine{text: fields[2]}
	for letter, flag := range map[string]uint64{"F": flagFatal, "N": flagNonfatal, "W": flagWarn} {
		if strings.Contains(fields[1], letter) {
			l.flags |= flag
		}
	}
	return l, true
}

func isStamp(s string) bool {
	seconds, fraction, ok := strings.Cut(s, ".")
	if !ok {
		return false
	}
	_, err1 := strconv.ParseUint(seconds, 10, 63)
	_, err2 := strconv.ParseUint(fraction, 10, 32)
	return err1 == nil && err2 == nil
}

// expected matches warnings about what dcol chooses with open eyes (see the package's text), and what
// OpenVPN says when it is told to end.
var expected = regexp.MustCompile(`cipher '?none'|'--(cipher|auth) none'|^event_wait : Interrupted system call`)

// ofPeer matches lines about one peer, that begin with its name or address. Strangers cause as
// many as they like.
var ofPeer = regexp.MustCompile(`^([a-z0-9-]{1,63}/)?(\[[0-9a-fA-F:.%]+\]|[0-9.]+|[0-9a-fA-F:]+):\d{1,5} `)

// verdict matches what is wrong with a certificate, of which some is logged as if it were nothing.
var verdict = regexp.MustCompile(`^VERIFY .*ERROR`)

// problem tells whether the line says that something is wrong here.
func (l logLine) problem() bool {
	bad := l.flags&(flagFatal|flagNonfatal|flagWarn) != 0 || verdict.MatchString(l.text)
	return bad && !expected.MatchString(l.text)
}

func (l logLine) level() slog.Level {
	switch {
	case !l.problem() || ofPeer.MatchString(l.text):
		return slog.LevelDebug
	case l.flags&flagFatal != 0:
		return slog.LevelError
	}
	return slog.LevelWarn
}

func (l logLine) write(log *slog.Logger) {
	log.Log(context.Background(), l.level(), "openvpn says", "line", l.text)
}
