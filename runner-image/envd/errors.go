package main

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Kinds of refused or failed requests. The runner decides by kind; the message is for people.
const (
	kindBadRequest  = "bad-request"    // the request itself is wrong: a fault of the runner
	kindBadArchive  = "bad-archive"    // the tar stream of a put is damaged or holds what is not allowed
	kindNoShell     = "no-shell"       // neither bash nor sh in the image
	kindNotFound    = "not-found"      // no such program
	kindNoCwd       = "no-cwd"         // the working directory does not exist
	kindNoUser      = "no-such-user"   // not in the image's /etc/passwd or /etc/group
	kindCannotUser  = "cannot-switch"  // envd does not run as root
	kindStart       = "cannot-start"   // the kernel refused to start the program
	kindMissing     = "missing"        // nothing is at the path
	kindLink        = "link"           // a link is where a directory is needed
	kindIO          = "io"             // the file system refused
	kindTooMany     = "too-many"       // more requests at a time than envd takes
	kindRefused     = "refused"        // not on this connection, or not while the container is being stopped
	kindCancelled   = "cancelled"      // by the runner
	kindUnkillable  = "unkillable"     // the command did not die of SIGKILL
	kindUnsupported = "unsupported"    // needs something that this container lacks, such as /proc
	kindInternal    = "internal"       // a bug of envd
	maxMessageBytes = 2 << 10          // of an error message sent to the runner
	truncationMark  = " ... [cut off]" // ends a message that was cut
)

// requestError is the failure of one request, as the runner will see it.
type requestError struct {
	kind string
	err  error
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

func failf(kind, format string, args ...any) error {
	return &requestError{kind: kind, err: fmt.Errorf(format, args...)}
}

// wireError is the form of an error in a result frame.
type wireError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

func toWire(err error) *wireError {
	kind := kindIO
	var known *requestError
	switch {
	case errors.As(err, &known):
		kind = known.kind
	case errors.Is(err, fs.ErrNotExist):
		kind = kindMissing
	case errors.Is(err, syscall.ELOOP):
		kind = kindLink
	}
	message := err.Error()
	if len(message) > maxMessageBytes {
		message = message[:maxMessageBytes] + truncationMark
	}
	return &wireError{Kind: kind, Message: message}
}
